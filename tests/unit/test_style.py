"""The lint settings of setup.cfg hold."""

import subprocess
import sys

import pytest

from tests.support.launching import ROOT


@pytest.mark.thorough
def test_flake8():
    for words in (["mpicoll"], ["--max-line-length=128", "tests", "benchmarks"]):
        command = [sys.executable, "-m", "flake8", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
