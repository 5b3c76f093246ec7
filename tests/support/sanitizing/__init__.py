"""The extension under the sanitizers of gcc: `python -m tests.support.sanitizing`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.compiling import HEADERS, LIBRARY, PROGRAM, SOURCE, compiled
from tests.support.launching import ROOT, completed, environment

#: beside those of setup.py. A sanitizer is not there yet when a program chooses the functions for its processor
OPTIONS = ("-std=gnu11", "-g", "-O1", "-DWIDE=")
THREADS = Path(__file__).with_name("threads.c")
CALLS = 3000
#: seconds for which one that plays a rank may stand still
PATIENCE = 20
#: what runs on ranks under the address and the undefined-behaviour sanitizer
TESTS = tuple(
    f"tests/mpi/test_{name}.py" for name in ("engine", "doors", "unusual_memory", "calls_by_one_rank", "odd_buffers")
)


def missing():
    """Why the sanitizers cannot be used here, or ""."""
    if shutil.which("gcc") is None:
        return "no gcc"
    if not (HEADERS / "Python.h").exists():
        return "no Python.h"
    lacks = [name for name in ("libasan.so", "libubsan.so", "libtsan.so") if not Path(library(name)).exists()]
    return f"no {', '.join(lacks)}" if lacks else ""


def library(name):
    """Where gcc finds a library."""
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()


def ranks(installation, folder, size=2):
    """Run the tests of the extension on ranks, with a copy of the package in a folder; raises where one fails."""
    folder.mkdir(exist_ok=True)
    for name in ("mpicoll", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "setup.cfg", folder)
    package = folder / "mpicoll"
    options = ("-fsanitize=address,undefined", *OPTIONS, *LIBRARY)
    compiled("gcc", package / "_engine.abi3.so", *options, source=package / "_engine.c")
    # Python and the MPI libraries keep memory to the end
    found = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    env = environment(PYTHONPATH=str(folder), LD_PRELOAD=library("libasan.so"), MPICOLL_ENGINE="c", **found)
    print(completed(installation.mpiexec, "-n", size, installation.python, "-m", "pytest", "-q", "-s", "--with-mpi", "-x",
                    *TESTS, cwd=folder, env=env))  # fmt: skip


def threads(folder, size, source=SOURCE, patience=PATIENCE):
    """Let threads be the ranks of a node, see threads.c.

    Raises where one reads what another writes at that time, or an element is wrong. source: the extension's. patience: seconds
    for which one may stand still, see `PATIENCE`.
    """
    shutil.copy(source, folder / "_engine.c")
    program = compiled("gcc", folder / f"threads-{size}", "-fsanitize=thread", *OPTIONS, *PROGRAM, "-fno-pie", "-no-pie",
                       f"-I{folder}", source=THREADS)  # fmt: skip
    print(completed(program, size, CALLS, patience, env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}))


def main():
    """All of it, with this Python's MPI library."""
    from tempfile import TemporaryDirectory

    from tests.support.launching import installations

    if reason := missing():
        sys.exit(reason)
    with TemporaryDirectory() as name:
        for size in (2, 3):
            threads(Path(name), size)
        ranks(installations()[0], Path(name, "ranks"))
