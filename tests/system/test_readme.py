"""README and docs/ say what is so: their commands and their Python run, and what they show is what the commands print."""

import importlib.util
import os
import re
import shlex
import shutil
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


@pytest.mark.thorough
@pytest.mark.parametrize("installation", installations()[-1:], ids=lambda found: found.name)
def test_a_new_user_reads_readme_and_the_first_page(installation, tmp_path):
    """From top to bottom, in one folder; what is installed already is not installed again.

    On another library than `test_command`.
    """
    for page in (ROOT / "README.md", ROOT / "docs/index.md"):
        for language, title, block in re.findall(r"```(\w+)(?: title=.(.+?).)?\n(.*?)```", page.read_text(), re.DOTALL):
            if language == "python" and "mpicoll.register" in block:
                (tmp_path / "mine.py").write_text(block)
            if language in ("sh", "text"):
                _type(block, installation, tmp_path)
        _changed(page, installation, tmp_path)
    output = mpiexec(installation, 2, "README", "index", module="tests.support.pages")
    assert "README.md, block 1 ran" in output and "index.md, block 1 ran" in output, output


def _type(block, installation, folder):
    """Run the commands of a block that need no installation, with this library's `python` and `mpiexec` first on the path."""
    path = f"{Path(installation.python).parent}{os.pathsep}{os.environ['PATH']}"
    for line in block.splitlines():
        if re.match(r"(mpiexec .*)?\bmpicoll\b", line):
            done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment(PATH=path), capture_output=True,
                                  text=True, timeout=PATIENCE)  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def _changed(page, installation, folder):
    """The program before and after the two lines: the same result."""
    change = next(block for block in blocks(page, "diff") if "import mpicoll" in block)
    results = []
    for sign in "-+":
        lines = [line[1:] for line in change.splitlines() if line[0] in (" ", sign) and "Allreduce" not in line]
        program = ["import numpy", *lines, "x = numpy.arange(1000.0)", "comm.Allreduce(MPI.IN_PLACE, x)", "print(x.sum())"]
        (folder / "two_lines.py").write_text("\n".join(program))
        results.append(mpiexec(installation, 2, module="two_lines", PYTHONPATH=f"{folder}{os.pathsep}{ROOT}"))
    assert results[0] == results[1] == "999000.0\n" * 2, results


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
    first = (tmp_path / "index.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|stylesheet" href)="?https?:', first), "it needs a network"


@pytest.mark.thorough
def test_search_works_from_files(tmp_path):
    """In a real browser, without a server."""
    browser = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if browser is None or importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs mkdocs and Chromium (Debian: chromium-headless-shell)")
    site = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path]
    subprocess.run(site, cwd=ROOT, check=True, env=environment(), timeout=PATIENCE)
    address = f"file://{tmp_path}/index.html?q=hangs"
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom", address]
    page = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    assert re.search(r"\d+ matching documents", page), page[-3000:]
    assert 'href="hangs.html' in page
