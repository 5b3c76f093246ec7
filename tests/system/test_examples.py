"""The examples run, on ranks, and pass the type checker."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import ROOT, environment, installations, mpiexec

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: what each prints on two ranks; the one that survives deaths is run by test_survival
SAYS = {
    "kmeans": r"2 ranks, 40000 points: [4-8] clusters", "own_algorithm": "star: right on 2 ranks, 2 rounds",
    "overlap": r"2 ranks: (\d+\.\d\d)\d+, exactly \1", "train_numpy": r"2 ranks: loss 0\.\d+",
    "pytorch_ddp": r"2 ranks: loss \d+\.\d+",
}  # fmt: skip


def test_each_is_short_and_known():
    assert {path.stem for path in EXAMPLES} == {*SAYS, "jacobi_survives"}
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.thorough] * name.startswith("pytorch")) for name in SAYS
])  # fmt: skip
def test_it_runs(name):
    if name.startswith("pytorch") and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: pip install 'mpicoll[torch]'")
    program = f"import runpy; runpy.run_path({str(ROOT / 'examples' / name)!r} + '.py', run_name='__main__')"
    Path("example.py").write_text(program)
    output = mpiexec(installations()[0], 2, module="example")
    assert re.search(SAYS[name], output), output


def test_types():
    files = [str(path) for path in EXAMPLES if not path.stem.startswith("pytorch")]
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", *files], cwd=ROOT, capture_output=True, text=True,
                          env=environment())  # fmt: skip
    assert done.returncode == 0, done.stdout
