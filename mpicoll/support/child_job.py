"""A job of a few ranks on this machine, for work that may crash or hang: its parent survives."""

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

#: variables that launchers and batch systems set for the processes of a job: a child that read them
#: would join that job, or ask for its nodes. Not the settings of users (MCA, ALLOW, PREFIX), which
#: have the same prefixes
_OF_THE_JOB = re.compile(
    r"(PMI\d?_|HYDI_|HYDRA_|I_MPI_HYDRA_|MPI_LOCAL|MPIEXEC_|SLURMD?_|PBS_|LSB_|PALS_|FLUX_).*"
    r"|OPAL_USER_PARAMS_GIVEN.*"
    r"|(PMIX|PRTE|OMPI)_(?!MCA_|ALLOW_|PREFIX$).*"
    r"|OMPI_MCA_(num_procs|initial_wdir|cpu_type|PREFIXES|(ess|orte|prte)_.*)"
    r"|\w+_hostfile"
)
#: let a library start as root, and more ranks than cores. quirk: refuses-root
_PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
#: the folder from which this package is imported
_HOME = str(Path(__file__).resolve().parents[2])
#: seconds that a launcher may take to end its ranks after SIGTERM
_GRACE = 5


class Ended(NamedTuple):
    """The end of a job."""

    #: its exit status; None after its time limit
    status: int | None
    #: both streams of all ranks
    output: str


def launcher(python: str = sys.executable) -> str | None:
    """The mpiexec beside an interpreter, or else the first on the PATH."""
    mpiexec = Path(python).with_name("mpiexec")
    return str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")


def own_launcher() -> str | None:
    """The mpiexec of the MPI library that this process has loaded, or else that of `launcher`."""
    try:
        loaded = re.findall(r"(/\S+/)libmpi[^/\s]*\.so", Path("/proc/self/maps").read_text())
    except OSError:
        loaded = []
    for library_folder in dict.fromkeys(loaded):
        for folder in (Path(library_folder), *Path(library_folder).parents):
            mpiexec = folder / "bin/mpiexec"
            if mpiexec.is_file():
                return str(mpiexec)
    return launcher()


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without the variables of the job, and with permissions for a new launcher."""
    own = {name: value for name, value in environ.items() if not _OF_THE_JOB.fullmatch(name)}
    return {**own, **_PERMISSIONS}


def run(mpiexec: str, ranks: int, module: str, seconds: float) -> Ended:
    """Call `main()` of a module of this package on so many ranks of a new job."""
    code = (
        f"import sys; {_HOME!r} in sys.path or sys.path.insert(0, {_HOME!r}); "
        f"import {module} as module; module.main()"
    )
    command = [mpiexec, "-n", str(ranks), sys.executable, "-c", code]
    # not a pipe: that stays open as long as any rank that outlives its launcher
    with tempfile.TemporaryFile() as output:
        try:
            job = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
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
