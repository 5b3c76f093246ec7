"""Which Python goes with which MPI, and where mpicoll itself lies."""

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from ..errors import LaunchError
from ..support.child_job import launcher
from ..support.quirks import INTEL_MPI, MPICH, OPEN_MPI

#: the directory that mpicoll is imported from: a source tree's root, or site-packages
HOME = Path(__file__).resolve().parents[2]
#: the source tree, where mpicoll was not installed from a wheel but is used as it stands
SOURCE_TREE = HOME if (HOME / "pyproject.toml").is_file() else None
#: the word on our command lines, and what the library calls itself
NAMES = {"openmpi": OPEN_MPI, "mpich": MPICH, "intelmpi": INTEL_MPI}


def find(mpi: str, python: str | None = None) -> tuple[str, str]:
    """(python, mpiexec): an interpreter whose mpi4py uses `mpi`, and its launcher.

    The interpreter given, and no other; else this one if it will do, else that of a virtual
    environment `.venv-MPI` in the current directory or the source tree. LaunchError where none has
    that MPI.
    """
    libraries = {place: library(place) for place in _interpreters(mpi, python)}
    for place, name in libraries.items():
        mpiexec = launcher(place)
        if name == NAMES[mpi] and mpiexec:
            return place, mpiexec
    seen = "; ".join(
        f"{place} has {name or 'no mpi4py that works'}" for place, name in libraries.items()
    )
    what, where = (
        (f"-e '.[{mpi}]'", "project's root")
        if SOURCE_TREE
        else (f"'mpicoll[{mpi}]'", "current directory")
    )
    raise LaunchError(
        f"expected a Python whose mpi4py uses {NAMES[mpi]}, with its mpiexec: {seen}. Make one with"
        f" `python3 -m venv .venv-{mpi} && .venv-{mpi}/bin/pip install {what}` in the {where}, or"
        " give its path (--python)."
    )


def _interpreters(mpi: str, python: str | None) -> list[str]:
    """Absolute paths of those to ask."""
    roots = dict.fromkeys(filter(None, [Path.cwd(), SOURCE_TREE]))
    places = (
        [python]
        if python
        else [sys.executable, *(str(root / f".venv-{mpi}/bin/python") for root in roots)]
    )
    return [shutil.which(place) or os.path.abspath(place) for place in places]


@lru_cache
def library(python: str) -> str | None:
    """The name of the MPI library that this interpreter's mpi4py uses; None where it has none."""
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI;"
        " print(MPI.get_vendor()[0])"
    )
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return said.stdout.strip() or None
