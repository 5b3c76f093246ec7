"""Find the MPI installations here and run commands under their mpiexec, with a time limit."""

import os
import shutil
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from mpicoll.cluster import NAMES

ROOT = Path(__file__).resolve().parents[2]
#: seconds after which a job counts as hung: far more than the slowest and busiest machine needs for any
PATIENCE = 600
#: what lets Open MPI run as root and with more ranks than cores, as a test machine often must; MPICH needs nothing
_PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # or threads wait for the cores on which ranks wait
}


class Installation(NamedTuple):
    """One MPI library with a Python whose mpi4py uses it."""

    name: str
    python: str
    mpiexec: str


@lru_cache
def installations():
    """This interpreter's MPI, and those of the virtual environments `.venv*` beside the project."""
    found = {}
    for python in [sys.executable, *map(str, sorted(ROOT.glob(".venv*/bin/python")))]:
        beside = Path(python).with_name("mpiexec")
        mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec") if python == sys.executable else None
        name = _library(python)
        if mpiexec and name:
            found.setdefault(name, Installation(name, python, mpiexec))
    return list(found.values())


def _library(python):
    code = "from mpi4py import MPI; import pytest_mpi; print(MPI.get_vendor()[0])"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment())
    names = {library: name for name, library in NAMES.items()}
    return names.get(answer.stdout.strip()) if answer.returncode == 0 else None


def environment(**more):
    """The environment of a launched job: one BLAS thread, permissions, the project importable as it stands here."""
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    # whatever the outer Python and pytest were told: hundreds of ranks are started, so what they import is compiled once; and a
    # print is written in one piece, or those of several ranks would mix
    outer = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": "", "PYTEST_ADDOPTS": ""}
    return {**os.environ, **_PERMISSIONS, **quiet, **outer, **more}


def completed(*words, **options):
    """What a command prints; raises with its last part where it fails or takes too long."""
    words = [str(word) for word in words]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout[-8000:]}"
    return done.stdout


def mpiexec(installation, size, *arguments, timeout=PATIENCE, module="pytest", check=True, **more):
    """Run `python -m module arguments` on `size` ranks; returns its output. A job over its time is killed, and fails.

    It runs in the current directory, which is an empty one in each test (`tests/conftest.py`).
    """
    command = [installation.mpiexec, "-n", str(size), installation.python, "-m", module, *map(str, arguments)]
    job = subprocess.Popen(command, env=environment(**more), stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
        raise AssertionError(f"{' '.join(command)}: not done after {timeout} s\n{output[-8000:]}") from None
    if check:
        assert job.returncode == 0, f"{' '.join(command)}: exit status {job.returncode}\n{output[-8000:]}"
    return output
