"""Which Python goes with which MPI."""

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from ..errors import LaunchError

ROOT = Path(__file__).resolve().parents[2]
#: the word on our command lines, and what the library calls itself
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}


def find(mpi, python=None):
    """(python, mpiexec): an interpreter whose mpi4py uses `mpi`, and the launcher that belongs to it.

    The interpreter given, and no other; else this one if it will do, else that of the virtual environment `.venv-MPI` in
    the project's root. LaunchError where none has that MPI.
    """
    places = [python] if python else [sys.executable, ROOT / f".venv-{mpi}" / "bin" / "python"]
    places = [shutil.which(place) or os.path.abspath(place) for place in places]
    found = {place: library(place) for place in places}
    for place, name in found.items():
        mpiexec = Path(place).with_name("mpiexec")
        mpiexec = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")
        if name == NAMES[mpi] and mpiexec:
            return place, mpiexec
    seen = "; ".join(f"{place} has {name or 'no mpi4py that works'}" for place, name in found.items())
    raise LaunchError(
        f"expected a Python whose mpi4py uses {NAMES[mpi]}, with its mpiexec: {seen}. Make one with `python3 -m venv "
        f".venv-{mpi} && .venv-{mpi}/bin/pip install -e '.[{mpi}]'` in the project's root, or give its path (--python)."
    )


@lru_cache
def library(python):
    """The name of the MPI library that this interpreter's mpi4py uses; None where it has none."""
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return next((name for name in NAMES.values() if name in said.stdout), None)
