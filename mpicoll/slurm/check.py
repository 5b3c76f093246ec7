"""Mistakes in SLURM job scripts that cause a hang, a false success or lost checkpoints.

Each occurred in a job on a real SLURM. `sbatch --test-only` finds what sbatch refuses at once.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import ArgumentError
from .job_settings import SETTING, node_local, not_elastic, wrong_setting

#: (line of the script, the problem and its remedy)
Mistake = tuple[int, str]

#: a launcher at the beginning of a command, behind `env …`, `time`, `exec` or assignments
_LAUNCH = re.compile(
    r"^(?:(?:exec|time|env|timeout \S+|-u \S+|\w+=\S*)\s+)*(srun|mpirun|mpiexec)\b(.*)"
)
_PYTHON = re.compile(r"\bpython[0-9.]*\s+(?!-m\s+(?:mpi4py|mpicoll)\b)(?:-\w+\s+)*(\S+)")
_OPTION = re.compile(r"--?([A-Za-z][a-z-]*)(?:[= ]([^\s#]+))?")
_CHECKPOINT = re.compile(r"--checkpoint[= ]\"?([^\s\"]+)")


class Script:
    """A parsed job script. Raises ArgumentError for a file that is no text."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.text = self.path.read_bytes().decode()
        except OSError as error:
            raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ArgumentError(f"{path}: expected a script, got a file that is not text") from None
        lines = self.text.splitlines()
        #: (line, text) of each command
        self.commands = list(_commands(lines))
        #: {name: (line, value)} of the #SBATCH lines
        self.options: dict[str, tuple[int, str]] = {}
        #: {name: (line, value)} of the settings at the top
        self.settings: dict[str, tuple[int, str]] = {}
        for number, line in enumerate(lines, 1):
            if line.startswith("#SBATCH"):
                options = line.partition(" #")[0].removeprefix("#SBATCH")
                self.options |= {name: (number, value) for name, value in _OPTION.findall(options)}
            elif match := SETTING.match(line):
                self.settings[match[1]] = number, match[2]
        #: (line, launcher, its arguments) of each command that starts ranks
        self.launches = [
            (number, match[1], match[2])
            for number, text in self.commands
            if (match := _LAUNCH.match(text))
        ]

    def option(self, *names: str) -> tuple[int, str] | None:
        """(line, value) of an option by one of its names, or None."""
        return next((self.options[name] for name in names if name in self.options), None)


def _commands(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(first line, text) of each command, without comments, continued lines joined."""
    first = 0
    text = ""
    for number, line in enumerate(lines, 1):
        stripped = re.sub(r"(^|\s)#.*", "", line).strip()
        first = first or (number if stripped else 0)
        text += stripped.removesuffix("\\")
        if first and not stripped.endswith("\\"):
            yield first, text
            first = 0
            text = ""
    if first:
        yield first, text


def mistakes(path: str | os.PathLike[str]) -> list[Mistake]:
    """The mistakes in a script, in the order of its lines, each with its remedy.

    Where sbatch is installed, its error for `--test-only` is among them. Raises ArgumentError for a
    file that is no text.
    """
    script = Script(path)
    return sorted({mistake for rule in RULES for mistake in rule(script)})


def _placement(script: Script) -> Iterator[Mistake]:
    nodes = script.option("nodes", "N")
    tasks = script.option("ntasks", "n")
    if nodes and tasks and nodes[1] != "1" and not script.option("ntasks-per-node"):
        yield tasks[0], "--ntasks alone fills nodes unevenly: give --ntasks-per-node"


def _settings(script: Script) -> Iterator[Mistake]:
    for name, (number, value) in script.settings.items():
        if wrong := wrong_setting(name, value):
            yield number, wrong
        if name == "VENV" and value.startswith("/") and not os.path.exists(f"{value}/bin/python"):
            yield number, f"VENV={value}: there is no bin/python"
    for number, text in script.commands:
        if (match := _CHECKPOINT.search(text)) and (wrong := node_local("--checkpoint", match[1])):
            yield number, wrong
        reads_launcher = text.startswith('. "$JOBS/launch.sh"')
        if reads_launcher and not script.path.with_name("launch.sh").exists():
            wrong = "launch.sh and env.sh belong beside the script: `mpicoll slurm new` writes them"
            yield number, wrong


def _elastic(script: Script) -> Iterator[Mistake]:
    number, value = script.settings.get("ELASTIC", (0, "0"))
    if wrong := not_elastic({name: value for name, (_, value) in script.settings.items()}):
        yield number, wrong
    if value not in ("", "0") and not script.option("no-kill", "k"):
        missing = f"ELASTIC={value} without #SBATCH --no-kill"
        yield number, f"{missing}: SLURM ends the job when it loses a node"


def _starts(script: Script) -> Iterator[Mistake]:
    for number, launcher, arguments in script.launches:
        python = _PYTHON.search(arguments)
        if python and not _installs_hook(script.path.parent / python[1]):
            wrong = (
                "an exception on one rank leaves the others waiting until the time limit:"
                f" mpicoll.install_abort_hook() in {python[1]} ends them all (or python -m"
                f" mpi4py {python[1]})"
            )
            yield number, wrong
        if launcher != "srun" or not re.search(r"\bpython|\bmpicoll\b", arguments):
            continue
        # quirk: separate-worlds
        if "--mpi" not in arguments and "SLURM_MPI_TYPE" not in script.text:
            wrong = (
                "srun without --mpi may start as many programs of one rank each, all successful:"
                " --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH and Intel MPI"
            )
            yield number, wrong
        kills = re.search(r"\s-\w*K|--kill-on-bad-exit", arguments)
        if not kills and "SLURM_KILL_BAD_EXIT" not in script.text:
            yield number, "without srun -K the job waits for the other ranks when one is killed"


def _installs_hook(program: Path) -> bool:
    try:
        return "install_abort_hook" in program.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _signals(script: Script) -> Iterator[Mistake]:
    warning = script.option("signal")
    traps = any(text.startswith("trap ") for _, text in script.commands)
    # launch.sh traps, too
    handled = traps or any("launch.sh" in text for _, text in script.commands)
    if warning:
        number, value = warning
        to_script = value.startswith("B:")
        if to_script and not handled:
            wrong = "SLURM's warning (B:, to the script) ends a script that has no trap for it"
            yield number, wrong
        if handled and not to_script:
            remedy = f"for the script's trap write --signal=B:{value}"
            yield number, f"--signal={value} goes to the ranks only: {remedy}"
    for number, launcher, arguments in script.launches:
        if traps and not arguments.rstrip().endswith("&"):
            wrong = "a trap runs only after a command in the foreground has ended"
            yield number, f"{wrong}: {launcher} … & and `wait`"


def _exit_status(script: Script) -> Iterator[Mistake]:
    if not script.launches or "set -e" in script.text or re.search(r"\bexit\b", script.text):
        return
    number, launcher, arguments = script.launches[-1]
    last, text = script.commands[-1]
    handled = text.startswith("wait ") or "||" in arguments or "&&" in arguments
    if number != last and not handled:
        wrong = f"commands follow, so the job is COMPLETED even if {launcher} fails"
        yield number, f"{wrong}: begin the script with `set -e`"


def _refused(script: Script) -> Iterator[Mistake]:
    """The error of sbatch, if SLURM is installed and running."""
    if shutil.which("sbatch") is None:
        return
    if subprocess.run(["scontrol", "ping"], capture_output=True).returncode:
        return
    command = ["sbatch", "--test-only", os.path.abspath(script.path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        yield 1, f"sbatch refuses it: {' '.join(done.stderr.split())}"


RULES = (_placement, _settings, _elastic, _starts, _signals, _exit_status, _refused)
