"""The recipes of `packaging/` do what they say, where their tool is here."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.launching import ROOT, completed, environment, installations

PACKAGING = ROOT / "packaging"
MODULECMD = shutil.which("modulecmd")
#: a ReFrame of its own environment, or that of the tests'
REFRAME = os.environ.get("REFRAME") or shutil.which("reframe")


@pytest.fixture
def prefix(tmp_path):
    """A folder with this interpreter's programs, and `mpicoll` of this tree."""
    folder = tmp_path / "prefix/bin"
    folder.mkdir(parents=True)
    program = folder / "mpicoll"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mpicoll "$@"\n')
    program.chmod(0o755)
    return folder.parent


@pytest.mark.skipif(MODULECMD is None, reason="there is no modulecmd (Debian: environment-modules)")
def test_mpicoll_runs_after_its_module_is_loaded(prefix, tmp_path):
    text = (PACKAGING / "modules/mpicoll").read_text()
    assert "set prefix /opt/mpicoll\n" in text
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "mpicoll").write_text(text.replace("/opt/mpicoll", str(prefix)))
    load = f'eval "$({MODULECMD} sh load mpicoll)" && command -v mpicoll && mpicoll info'
    said = completed("sh", "-c", load, env=environment(MODULEPATH=str(modules), LOADEDMODULES="", _LMFILES_=""))
    assert said.splitlines()[0] == str(prefix / "bin/mpicoll")
    assert "MPI library" in said


@pytest.mark.skipif(REFRAME is None, reason="there is no reframe (pip install reframe-hpc; REFRAME names its program)")
def test_reframe_runs_the_checks(prefix, tmp_path):
    mpiexec = Path(installations()[0].mpiexec).parent
    path = f"{prefix}/bin:{mpiexec}:{os.environ['PATH']}"
    words = ["-C", PACKAGING / "reframe/site.py", "-c", PACKAGING / "reframe/mpicoll_checks.py", "--prefix", tmp_path, "-r"]
    said = completed(REFRAME, *words, "--nocolor", env=environment(PATH=path))
    assert "Ran 2/2 test case(s) from 2 check(s) (0 failure(s)" in said
    assert "P: auto_4k: " in said
