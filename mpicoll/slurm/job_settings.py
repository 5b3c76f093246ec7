"""The settings at the top of a job script: their values, checked without SLURM."""

import re
import subprocess
from collections.abc import Iterable, Mapping

from ..collectives import COLLECTIVES
from ..errors import did_you_mean
from ..support.quirks import is_open_mpi

#: a setting in a script: `: "${NAME:=value}"`, then its comment
SETTING = re.compile(r'^: "\$\{([A-Z_]+):=(.*?)\}"(.*)$')
#: settings that take one of a few words
WORDS = {
    "LAUNCHER": ("auto", "srun", "mpirun", "mpiexec"),
    "STRATEGY": ("parameter_server", "allreduce", "zero1", "zero2", "diloco"),
    "COLLECTIVE": tuple(COLLECTIVES),
    "DEVICE": ("cpu", "cuda"),
}
#: the program that prints the MPI library of a Python, as in launch.sh
_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpicoll.support.quirks import library;"
    " print(library())"
)
_LOCAL = re.compile(r"(/tmp|/var/tmp|/dev/shm|\$\{?TMPDIR\}?|\$\{?SLURM_TMPDIR\}?)(/|$)")


def wrong_setting(name: str, value: str) -> str:
    """The problem of a setting, or ""."""
    words: Iterable[str] = WORDS.get(name, ())
    if words and "$" not in value and value not in words:
        return f"{name}={value}: expected {', '.join(words)}{did_you_mean(value, words)}"
    if name == "ELASTIC" and not re.fullmatch(r"\d*|\$.*", value):
        return f"ELASTIC={value}: expected the fewest nodes to go on with, or 0: off"
    return node_local(name, value)


def not_elastic(settings: Mapping[str, str]) -> str:
    """Why a job with ELASTIC cannot survive the loss of ranks, or ""."""
    if settings.get("ELASTIC", "0") in ("", "0"):
        return ""
    launcher = settings.get("LAUNCHER", "auto")
    venv = settings.get("VENV", "").replace("$SLURM_SUBMIT_DIR", ".")
    command = [f"{venv}/bin/python", "-c", _LIBRARY]
    try:
        library = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        library = ""  # the environment may be made later
    # quirk: death-ends-the-job
    if launcher != "srun" and (not library or is_open_mpi(library)):
        return ""
    which = f"{library} and LAUNCHER={launcher}" if library else f"LAUNCHER={launcher}"
    return (
        f"ELASTIC={settings['ELASTIC']} with {which}, which ends all ranks when one dies: use Open"
        " MPI and LAUNCHER=mpirun, or ELASTIC=0"
    )


def node_local(name: str, path: str) -> str:
    """The problem of a path that all nodes must share, or ""."""
    if not _LOCAL.match(path):
        return ""
    return (
        f"{name}={path}: each node has a directory of its own there; name one that all nodes share"
    )
