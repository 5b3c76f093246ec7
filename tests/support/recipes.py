"""What the recipes of `packaging/` are tried with."""

import os
import shutil
import sys
from pathlib import Path

from tests.support.launching import ROOT, completed

PACKAGING = ROOT / "packaging"
#: a ReFrame of its own environment, or that of the tests'
REFRAME = os.environ.get("REFRAME") or shutil.which("reframe", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
NO_REFRAME = "there is no reframe (pip install reframe-hpc; REFRAME names its program)"


def install_program(folder):
    """The program `mpicoll` of this tree and interpreter, in `bin` of a folder; returns `bin`."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    program = programs / "mpicoll"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mpicoll "$@"\n')
    program.chmod(0o755)
    return programs


def reframe(site, output, *words, call=completed, **settings):
    """Run the checks with ReFrame; returns what it prints."""
    checks = PACKAGING / "reframe/mpicoll_checks.py"
    said = call(REFRAME, "-C", PACKAGING / "reframe" / site, "-c", checks, "--prefix", output, "-r", "--nocolor",
                *words, **settings)  # fmt: skip
    assert "Ran 2/2 test case(s) from 2 check(s) (0 failure(s)" in said, said
    assert "P: auto_4k: " in said
    return said
