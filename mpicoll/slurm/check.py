"""Known mistakes in SLURM job scripts, found by reading them: those that end in a hang, or in a success that is none."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import ArgumentError
from .values import elastic, local, wrong_option, wrong_setting

#: programs that start ranks, at the beginning of a command, behind `env …`, `time`, `exec` or assignments
_LAUNCH = re.compile(r"^(?:(?:exec|time|env|timeout \S+|-u \S+|\w+=\S*)\s+)*(srun|mpirun|mpiexec)\b(.*)")
_PYTHON = re.compile(r"\bpython[0-9.]*\s+(?!-m\s+(?:mpi4py|mpicoll)\b)(?:-\w+\s+)*(\S+)")
_OPTION = re.compile(r"--?([A-Za-z][a-z-]*)(?:[= ]([^\s#]+))?")
_CHECKPOINT = re.compile(r"--checkpoint[= ]\"?([^\s\"]+)")
_SETTING = re.compile(r'^: "\$\{([A-Z_]+):=(.*?)\}"')


class Script:
    """A job script taken apart: `lines`, `options` {name: (line, value)} of its #SBATCH lines, `commands` [(line, text)]."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.text = self.path.read_bytes().decode()
        except OSError as error:
            raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ArgumentError(f"{path}: expected a script, got a file that is not text") from None
        self.lines = self.text.splitlines()
        self.commands = list(_commands(self.lines))
        self.first = self.commands[0][0] if self.commands else len(self.lines) + 1
        self.options = {name: (number, value) for number, line in enumerate(self.lines, 1)
                        if line.startswith("#SBATCH") and number < self.first
                        for name, value in _OPTION.findall(line.partition(" #")[0][len("#SBATCH"):])}  # fmt: skip
        self.settings = {match[1]: (number, match[2]) for number, line in enumerate(self.lines, 1)
                         if (match := _SETTING.match(line))}  # fmt: skip
        self.launches = [(number, match[1], match[2]) for number, text in self.commands if (match := _LAUNCH.match(text))]

    def option(self, *names: str) -> tuple[int, str] | None:
        """(line, value) of an option by one of its names, or None."""
        return next((self.options[name] for name in names if name in self.options), None)


def _commands(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each command, without comments, continued lines joined."""
    begun, text = None, ""
    for number, line in enumerate(lines, 1):
        stripped = re.sub(r"(^|\s)#.*", "", line).strip()
        if stripped and begun is None:
            begun = number
        text += stripped.removesuffix("\\")
        if begun and not stripped.endswith("\\"):
            yield begun, text
            begun, text = None, ""
    if begun:
        yield begun, text


def mistakes(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """(line, what is wrong and what to do) for each known mistake in the script, in the order of its lines.

    Where sbatch is at hand, what it says to `--test-only` is one more. Raises ArgumentError for a file that is no text.
    """
    script = Script(path)
    return sorted({found for rule in RULES for found in rule(script)})


def _header(script: Script) -> Iterator[tuple[int, str]]:
    first = script.lines[0] if script.lines else ""
    if not first.startswith("#!"):
        yield 1, "sbatch takes only scripts whose first line names a shell: #!/bin/bash"
    if "\r\n" in script.text:
        yield 1, "lines end as on Windows (CR LF), which no shell understands: run dos2unix on it"
    for number, line in enumerate(script.lines, 1):
        if line.startswith("#SBATCH") and number > script.first:
            yield number, f"SLURM reads no #SBATCH line below the first command (line {script.first}): move it up"
        if re.match(r"#\s+SBATCH\b|#+\s*(SBACTH|SBTACH|SABTCH|SBATHC|sbatch)\b", line) and not line.startswith("#SBATCH"):
            yield number, "SLURM reads only lines that begin with exactly #SBATCH"


def _shape(script: Script) -> Iterator[tuple[int, str]]:
    nodes, tasks = script.option("nodes", "N"), script.option("ntasks", "n")
    each, gpus = script.option("ntasks-per-node"), script.option("gpus-per-node")
    if nodes and tasks and not each and nodes[1] != "1":
        yield tasks[0], "--ntasks alone fills nodes unevenly: give --ntasks-per-node"
    if gpus and each and _uneven(each[1], gpus[1].rpartition(":")[2]):
        found = f"--ntasks-per-node={each[1]} with --gpus-per-node={gpus[1]}"
        yield each[0], f"{found}: expected one rank for each GPU, or as many for each"


def _uneven(ranks: str, gpus: str) -> bool:
    """Whether a GPU has no rank, or more than another one."""
    known = ranks.isdecimal() and gpus.isdecimal() and int(gpus) > 0
    return int(ranks) % int(gpus) > 0 or ranks == "0" if known else ranks != gpus


def _options(script: Script) -> Iterator[tuple[int, str]]:
    for name, (number, value) in script.options.items():
        if wrong := wrong_option(name, value):
            yield number, wrong
    for number, text in script.commands:
        if (match := _CHECKPOINT.search(text)) and (wrong := local("--checkpoint", match[1])):
            yield number, wrong


def _output(script: Script) -> Iterator[tuple[int, str]]:
    output = script.option("output", "o")
    number, path = output or (0, "")
    folder = os.path.dirname(path)
    if folder and "%" not in folder and not os.path.isdir(folder):
        yield number, f"there is no directory {folder}, so the job would end without a word: make it"


def _settings(script: Script) -> Iterator[tuple[int, str]]:
    for name, (number, value) in script.settings.items():
        if wrong := wrong_setting(name, value):
            yield number, wrong
        if name == "VENV" and value.startswith("/") and not os.access(f"{value}/bin/python", os.X_OK):
            yield number, f"VENV={value}: there is no bin/python"
    for number, text in script.commands:
        if text.startswith('. "$JOBS/launch.sh"') and not (script.path.parent / "launch.sh").exists():
            yield number, "launch.sh and env.sh belong beside the script: `mpicoll slurm new` writes them"


def _elastic(script: Script) -> Iterator[tuple[int, str]]:
    """What going on without dead ranks and lost nodes needs."""
    number, value = script.settings.get("ELASTIC", (0, "0"))
    if wrong := elastic({name: value for name, (_, value) in script.settings.items()}):
        yield number, wrong
    if value not in ("", "0") and not script.option("no-kill", "k"):
        yield number, f"ELASTIC={value} without #SBATCH --no-kill: SLURM ends the job when it loses a node"


def _starts(script: Script) -> Iterator[tuple[int, str]]:
    """What a launcher's line lacks."""
    for number, launcher, rest in script.launches:
        python = _PYTHON.search(rest)
        if python and not _ends_on_errors(script, python[1]):
            yield number, (f"an exception on one rank leaves the others waiting until the time limit: mpicoll."
                           f"install_abort_hook() in {python[1]} ends them all (or python -m mpi4py {python[1]})")  # fmt: skip
        if launcher != "srun" or not re.search(r"\bpython|\bmpicoll\b", rest):
            continue
        if "--mpi" not in rest and "SLURM_MPI_TYPE" not in script.text:
            yield number, ("srun without --mpi may start as many programs of one rank each, all successful: --mpi=pmix for "
                           "Open MPI, --mpi=pmi2 for MPICH and Intel MPI")  # fmt: skip
        if not re.search(r"\s-\w*K|--kill-on-bad-exit", rest) and "SLURM_KILL_BAD_EXIT" not in script.text:
            yield number, "without srun -K the job waits for the other ranks when one is killed"
        if script.option("cpus-per-task", "c") and not re.search(r"\s-c|--cpus-per-task|SRUN_CPUS_PER_TASK", script.text[
                script.text.find("\n", script.text.rfind("#SBATCH")):]):  # fmt: skip
            yield number, ("srun does not take --cpus-per-task from sbatch (since SLURM 22.05): export SRUN_CPUS_PER_TASK="
                           "$SLURM_CPUS_PER_TASK")  # fmt: skip


def _ends_on_errors(script: Script, program: str) -> bool:
    """Whether the program, where it can be read, installs the hook itself."""
    try:
        return "install_abort_hook" in (script.path.parent / program).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _signals(script: Script) -> Iterator[tuple[int, str]]:
    warned, traps = script.option("signal"), [entry for entry in script.commands if entry[1].startswith("trap ")]
    shared = any("launch.sh" in text for _, text in script.commands)  # it traps
    if warned and warned[1].startswith("B:") and not traps and not shared:
        yield warned[0], "SLURM's warning (B:, to the script) ends a script that has no trap for it"
    if warned and not warned[1].startswith("B:") and (traps or shared):
        yield warned[0], f"--signal={warned[1]} goes to the ranks only: for the script's trap write --signal=B:{warned[1]}"
    for number, launcher, rest in script.launches:
        if traps and not rest.rstrip().endswith("&"):
            yield number, f"a trap runs only after a command in the foreground has ended: {launcher} … & and `wait`"


def _status(script: Script) -> Iterator[tuple[int, str]]:
    """A script's exit status is the job's."""
    if not script.launches or "set -e" in script.text or re.search(r"\bexit\b", script.text):
        return
    number, launcher, rest = script.launches[-1]
    last, text = script.commands[-1]
    if number != last and not text.startswith("wait ") and "||" not in rest and "&&" not in rest:
        yield number, f"commands follow, so the job is COMPLETED even if {launcher} fails: begin the script with `set -e`"


def _asked(script: Script) -> Iterator[tuple[int, str]]:
    """What SLURM itself says, where there is one."""
    if shutil.which("sbatch") is None or subprocess.run(["scontrol", "ping"], capture_output=True).returncode:
        return
    said = subprocess.run(["sbatch", "--test-only", os.path.abspath(script.path)], capture_output=True, text=True)
    if said.returncode:
        yield 1, f"sbatch refuses it: {' '.join(said.stderr.split())}"


RULES = (_header, _shape, _options, _output, _settings, _elastic, _starts, _signals, _status, _asked)
