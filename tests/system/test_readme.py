"""The README says what is so: its commands run, and what it shows is what the commands print."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll.cluster.namespaces import unavailable
from tests.support.launching import PATIENCE, ROOT, environment, installations

README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
SETUP = [line for line in COMMANDS if "venv" in line]


def test_what_it_shows_is_what_results_commands_and_files_say():
    subprocess.run([sys.executable, "-m", "benchmarks.report.tables", "--check"], cwd=ROOT, check=True, env=environment())


def test_ci_runs_the_test_command():
    assert SETUP[1] in (ROOT / ".ci/run").read_text()


def test_the_first_command_in_a_fresh_clone(tmp_path):
    clone = tmp_path / "mpicoll"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run(["git", "-c", "safe.directory=*", "checkout", "-q", "HEAD"], cwd=clone, check=True)
    done = subprocess.run(["bash", "-c", SETUP[0]], cwd=clone, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"test accuracy\D*([\d.]+)", done.stdout)
    assert accuracy and float(accuracy[1]) >= 0.95, done.stdout


@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in SETUP])
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


def test_every_link_to_a_file_exists():
    for path in re.findall(r"`((?:benchmarks|tests|mpicoll)/[\w./]*)`", README):
        assert Path(ROOT, path).exists(), path
