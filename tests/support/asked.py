"""The programs of examples/asked, and their transcripts: `python -m tests.support.asked [NUMBER …]` writes them anew."""

import os
import shlex
import subprocess
import sys
from typing import NamedTuple

from .launching import PATIENCE, ROOT, environment, installations

FOLDER = ROOT / "examples" / "asked"
PROGRAMS = sorted(FOLDER.glob("*.py"))
FOUND = {installation.name: installation for installation in installations()}


class Run(NamedTuple):
    """A command of a transcript and what it prints: `$ NAME=value mpiexec -n 3 python program.py  # mpich, openmpi`."""

    command: str
    libraries: tuple[str, ...]
    printed: str

    def again(self, library):
        """What it prints on the standard output of all ranks. Paths are those seen from the folder of the programs."""
        one = FOUND[library]
        words = shlex.split(self.command)
        first = words.index("mpiexec")
        more = dict(word.split("=", 1) for word in words[:first])
        known = {"mpiexec": one.mpiexec, "python": one.python}
        words = [known.get(word, word) for word in words[first:]]
        done = subprocess.run(words, cwd=FOLDER, env=environment(**more), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)  # fmt: skip
        assert done.returncode == 0 and done.stdout.strip(), done.stdout + done.stderr[-5000:]
        lines = done.stdout.replace(f"{FOLDER}{os.sep}", "").splitlines()
        return "\n".join(line.rstrip() for line in lines).strip() + "\n"


def runs(program):
    """The runs of a program's transcript."""
    for part in program.with_suffix(".txt").read_text(encoding="utf-8").split("$ ")[1:]:
        first, _, printed = part.partition("\n")
        command, _, libraries = first.partition("  # ")
        yield Run(command, tuple(libraries.split(", ")), printed)


def main(numbers):
    """Write the transcripts of these programs, or of all."""
    for program in PROGRAMS:
        if not numbers or program.name[:2] in numbers:
            parts = [
                f"$ {run.command}  # {', '.join(run.libraries)}\n{run.again(run.libraries[0])}" for run in runs(program)
            ]
            program.with_suffix(".txt").write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
