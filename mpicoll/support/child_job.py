"""A job of a few ranks on this machine, started and watched by a process: what may crash or hang does so there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

#: what launchers and batch systems tell the processes of a job: a child that read it would join that job, or ask for its
#: nodes. Not the settings (MCA, ALLOW, PREFIX) that users give in the same way
_OF_THE_JOB = re.compile(
    r"(PMI\d?_|HYDI_|HYDRA_|I_MPI_HYDRA_|MPI_LOCAL|MPIEXEC_|SLURMD?_|PBS_|LSB_|PALS_|FLUX_|OPAL_USER_PARAMS_GIVEN).*"
    r"|(PMIX|PRTE|OMPI)_(?!MCA_|ALLOW_|PREFIX$).*|OMPI_MCA_(num_procs|initial_wdir|cpu_type|PREFIXES|(ess|orte|prte)_.*)"
    r"|\w+_hostfile"
)
#: who is an MPI job's rank here may be root, and need not have a core for each rank.
#: quirk: refuses-root
_PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
#: where this package is found
_HOME = str(Path(__file__).resolve().parents[2])
#: seconds in which a launcher that was told to end takes its ranks with it
_GRACE = 5


class Ended(NamedTuple):
    """How a job ended. status: its exit status, None where its time was up; output: both streams of all ranks."""

    status: int | None
    output: str


def launcher(python: str = sys.executable) -> str | None:
    """The mpiexec beside an interpreter, or else the first on the PATH."""
    mpiexec = Path(python).with_name("mpiexec")
    return str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")


def own_launcher() -> str | None:
    """The mpiexec of the MPI library that this process has loaded, or else what `launcher` finds."""
    try:
        loaded = re.findall(r"(/\S+/)libmpi[^/\s]*\.so", Path("/proc/self/maps").read_text())
    except OSError:
        loaded = []
    places = [parent / "bin/mpiexec" for folder in dict.fromkeys(loaded) for parent in [Path(folder), *Path(folder).parents]]
    return next((str(place) for place in places if place.is_file()), None) or launcher()


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A rank's environment as it was before its launcher added to it, with what lets a launcher start anywhere."""
    own = {name: value for name, value in environ.items() if not _OF_THE_JOB.fullmatch(name)}
    return {**own, **_PERMISSIONS}


def run(mpiexec: str, ranks: int, module: str, seconds: float) -> Ended:
    """Call `main()` of a module of this package on so many ranks of a job of their own."""
    code = (f"import sys; {_HOME!r} in sys.path or sys.path.insert(0, {_HOME!r}); "
            f"import {module} as module; module.main()")  # fmt: skip
    command = [mpiexec, "-n", str(ranks), sys.executable, "-c", code]
    with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as any rank that was left behind
        try:
            job = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        except OSError as error:
            return Ended(127, f"{mpiexec}: {error.strerror}")
        status = _await(job, seconds)
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace"))


def _await(job: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return job.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # also where a signal handler raised
        _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is not None:
        return
    job.terminate()
    try:
        job.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
