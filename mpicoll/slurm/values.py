"""What options of sbatch and settings of a script may be, as far as it can be known without SLURM."""

import re
import subprocess
from collections.abc import Iterable, Mapping

from ..collectives import COLLECTIVES
from ..errors import did_you_mean

#: asks a Python for its MPI library, as launch.sh does
_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpicoll.support.node import library; print(library())"
#: settings that take one of a few words
WORDS = {
    "LAUNCHER": ("auto", "srun", "mpirun", "mpiexec"),
    "STRATEGY": ("parameter_server", "allreduce", "zero1", "zero2"),
    "COLLECTIVE": tuple(COLLECTIVES),
    "DEVICE": ("cpu", "cuda"),
}
#: sbatch's options that mean something to MPI jobs, and others that are often given
SBATCH = (
    "account", "array", "begin", "chdir", "comment", "constraint", "contiguous", "core-spec", "cores-per-socket", "cpu-freq",
    "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude", "exclusive",
    "export", "export-file", "extra", "extra-node-info", "get-user-env", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "hold", "ignore-pbs", "input", "job-name",
    "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus",
    "network", "nice", "no-kill", "no-requeue", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core",
    "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode", "output", "overcommit", "oversubscribe", "parsable",
    "partition", "power", "prefer", "priority", "profile", "propagate", "qos", "quiet", "reboot", "requeue", "reservation",
    "signal", "sockets-per-node", "spread-job", "switches", "test-only", "thread-spec", "threads-per-core", "time", "time-min",
    "tmp", "tres-per-task", "uid", "use-min-nodes", "verbose", "wait", "wait-all-nodes", "wckey", "wrap",
)  # fmt: skip
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_COUNTS = ("ntasks-per-node", "cpus-per-task", "ntasks")
_LOCAL = re.compile(r"(/tmp|/var/tmp|/dev/shm|\$\{?TMPDIR\}?|\$\{?SLURM_TMPDIR\}?)(/|$)")


def wrong_option(name: str, value: str) -> str:
    """What is wrong with an option of sbatch; empty where nothing is known to be."""
    if len(name) > 1 and name not in SBATCH and (hint := did_you_mean(name, SBATCH)):
        return f"sbatch has no option --{name}{hint}"
    if name in ("time", "t") and not _TIME.fullmatch(value):
        return f"--time={value}: expected minutes, HH:MM:SS or D-HH:MM, such as 01:00:00"
    if name in _COUNTS and not re.fullmatch(r"[1-9]\d*", value):
        return f"--{name}={value}: expected a whole number above 0"
    return ""


def wrong_setting(name: str, value: str) -> str:
    """What is wrong with a setting; empty where nothing is known to be."""
    words: Iterable[str] = WORDS.get(name, ())
    if words and "$" not in value and value not in words:
        return f"{name}={value}: expected {', '.join(words)}{did_you_mean(value, words)}"
    if name == "ELASTIC" and not re.fullmatch(r"\d*|\$.*", value):
        return f"ELASTIC={value}: expected the fewest nodes to go on with, or 0: off"
    return local(name, value)


def elastic(settings: Mapping[str, str]) -> str:
    """What in the settings of a script keeps it from going on without some ranks; empty where it need not, or all is well."""
    if settings.get("ELASTIC", "0") in ("", "0"):
        return ""
    launcher, venv = settings.get("LAUNCHER", "auto"), settings.get("VENV", "").replace("$SLURM_SUBMIT_DIR", ".")
    try:
        library = subprocess.run([f"{venv}/bin/python", "-c", _LIBRARY], capture_output=True, text=True).stdout.strip()
    except OSError:
        library = ""  # it may be made later
    if launcher != "srun" and (not library or library.startswith("Open MPI")):
        return ""
    which = f"{library} and LAUNCHER={launcher}" if library else f"LAUNCHER={launcher}"
    return (f"ELASTIC={settings['ELASTIC']} with {which}, which ends all ranks when one dies: use Open MPI and "
            "LAUNCHER=mpirun, or ELASTIC=0")  # fmt: skip


def local(name: str, path: str) -> str:
    """What is wrong with a path that all nodes must see."""
    if not _LOCAL.match(path):
        return ""
    return f"{name}={path}: each node has a directory of its own there; name one that all nodes share"
