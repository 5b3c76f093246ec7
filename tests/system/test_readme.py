"""README and docs/ say what is so: their commands and their Python run, and what they show is what the commands print."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll.cluster.namespaces import unavailable
from tests.support import msccl
from tests.support.launching import PATIENCE, ROOT, environment, installations, mpiexec
from tests.support.pages import PAGES, blocks

#: each once, in the order of the pages
COMMANDS = list(dict.fromkeys(line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()))
SETUP = [line for line in COMMANDS if "venv" in line]
INSTALLS = [line for line in COMMANDS if line.startswith("pip install")]


def test_what_it_shows_is_what_results_commands_and_files_say():
    subprocess.run([sys.executable, "-m", "benchmarks.report.tables", "--check"], cwd=ROOT, check=True, env=environment())


def test_ci_runs_both_commands_in_their_order():
    """In one clean clone, so that the second finds what the first one left."""
    job = (ROOT / ".ci/run").read_text()
    assert 0 < job.find(SETUP[0]) < job.find(SETUP[1])


@pytest.mark.thorough
@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in SETUP + INSTALLS])
def test_command(command, tmp_path):
    installation = installations()[0]
    (tmp_path / "mine.py").write_text((ROOT / "tests/support/mine.py").read_text())
    (tmp_path / "allreduce.xml").write_text(msccl.ring(4).xml())
    (tmp_path / "alltoall.xml").write_text(msccl.exchange(4).xml())
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
