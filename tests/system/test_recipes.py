"""The recipes of `packaging/` do what they say, where their tool is here."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.launching import completed, environment, installations
from tests.support.recipes import NO_REFRAME, PACKAGING, REFRAME, install_program, reframe

MODULECMD = shutil.which("modulecmd")


@pytest.mark.skipif(MODULECMD is None, reason="there is no modulecmd (Debian: environment-modules)")
def test_mpicoll_runs_after_its_module_is_loaded(tmp_path):
    prefix = install_program(tmp_path / "prefix").parent
    text = (PACKAGING / "modules/mpicoll").read_text()
    assert "set prefix /opt/mpicoll\n" in text
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "mpicoll").write_text(text.replace("/opt/mpicoll", str(prefix)))
    load = f'eval "$({MODULECMD} sh load mpicoll)" && command -v mpicoll && mpicoll info'
    said = completed("sh", "-c", load, env=environment(MODULEPATH=str(modules), LOADEDMODULES="", _LMFILES_=""))
    assert said.splitlines()[0] == str(prefix / "bin/mpicoll")
    assert "MPI library" in said


@pytest.mark.thorough
@pytest.mark.skipif(REFRAME is None, reason=NO_REFRAME)
def test_reframe_runs_the_checks(tmp_path):
    programs = install_program(tmp_path / "prefix")
    path = f"{programs}:{Path(installations()[0].mpiexec).parent}:{os.environ['PATH']}"
    reframe("site.py", tmp_path, env=environment(PATH=path))
