"""README and docs/ say what is so: their commands and their Python run, and what they show is what the commands print."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll.cluster.namespaces import unavailable
from tests.support.launching import PATIENCE, ROOT, environment, installations, mpiexec
from tests.support.pages import PAGES, blocks

#: each once, in the order of the pages
COMMANDS = list(dict.fromkeys(line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()))
SETUP = [line for line in COMMANDS if "venv" in line]
INSTALLS = [line for line in COMMANDS if line.startswith("pip install")]


def test_what_it_shows_is_what_results_commands_and_files_say():
    subprocess.run([sys.executable, "-m", "benchmarks.report.tables", "--check"], cwd=ROOT, check=True, env=environment())


def test_ci_runs_both_commands_in_their_order():
    job = (ROOT / ".ci/run").read_text()
    assert 0 < job.find(SETUP[0]) < job.find(SETUP[1])


@pytest.mark.thorough
def test_both_commands_one_after_the_other_in_a_fresh_clone(tmp_path):
    """The second finds what the first one left; its tests are the quick ones, because all of them are running just now."""
    clone = tmp_path / "mpicoll"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run(["git", "-c", "safe.directory=*", "checkout", "-q", "HEAD"], cwd=clone, check=True)
    accuracy = re.search(r"test accuracy\D*([\d.]+)", _in_bash(SETUP[0], clone))
    assert accuracy and float(accuracy[1]) >= 0.95
    assert re.search(r"\d+ passed", _in_bash(SETUP[1], clone, PYTEST_ADDOPTS="-m quick"))


def _in_bash(command, directory, **more):
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(["bash", "-c", command], cwd=directory, env={**outside, **more}, capture_output=True, text=True,
                          timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in SETUP + INSTALLS])
def test_command(command, tmp_path):
    installation = installations()[0]
    (tmp_path / "mine.py").write_text((ROOT / "tests/support/mine.py").read_text())
    words = shlex.split(command)
    if words[0] == "mpiexec":
        words[0] = installation.mpiexec
    at = words.index("mpicoll")
    words[at : at + 1] = [installation.python, "-m", "mpicoll"]
    if "cluster" in words:
        words[words.index("--mpi") + 1] = installation.name
        if unavailable():
            pytest.skip(unavailable())
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_installs_name_extras_that_exist():
    """To run them would take from an index what is here already."""
    extras = (ROOT / "setup.cfg").read_text().partition("[options.extras_require]")[2]
    known = set(re.findall(r"^(\w+) =", extras, re.MULTILINE))
    for line in INSTALLS:
        assert set(re.search(r"\[(.*?)\]", line)[1].split(",")) <= known, line


def test_python():
    installation = installations()[0]
    output = mpiexec(installation, 2, module="tests.support.pages")
    assert output.count(" ran") >= 10, output


def test_every_link_to_a_file_exists():
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(r"`((?:benchmarks|tests|mpicoll)/[\w./]*)`", text):
            assert Path(ROOT, path).exists(), (page, path)
        for path in re.findall(r"\]\(([\w./-]+)\)", text):
            assert Path(page.parent, path).exists(), (page, path)


@pytest.mark.thorough
def test_the_site_is_built(tmp_path):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install 'mpicoll[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api.html").read_text().count("Allreduce") > 3
