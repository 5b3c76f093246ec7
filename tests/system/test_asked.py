"""What docs/asked.md shows of requests made to other libraries is what its programs print."""

import importlib.util
import re

import pytest

from tests.support.asked import FOUND, PROGRAMS, runs
from tests.support.launching import ROOT

#: they import PyTorch, or start a training
LONG = ("01", "04", "05", "08", "09", "10")
CASES = [
    pytest.param(program, run, library, id=f"{program.stem}-{library}",
                 marks=[pytest.mark.thorough] * (program.name[:2] in LONG))
    for program in PROGRAMS for run in runs(program) for library in run.libraries
]  # fmt: skip


@pytest.mark.parametrize("program, run, library", CASES)
def test_it_prints_what_the_page_shows(program, run, library):
    if library not in FOUND:
        pytest.skip(f"{library} is not here")
    if "torch" in program.read_text() and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: pip install 'mpicoll[torch]'")
    assert run.again(library) == run.printed


def test_each_is_short_and_on_the_page():
    page = (ROOT / "docs" / "asked.md").read_text()
    assert len(PROGRAMS) == 15
    for number, program in enumerate(PROGRAMS, 1):
        lines = program.read_text().splitlines()
        assert len(lines) <= 20 and max(map(len, lines)) <= 100, program
        assert re.match(rf"{number:02}_", program.name) and lines[0].startswith('"""') and lines[0].endswith('"""'), program
        assert f"<!-- program:examples/asked/{program.name} -->" in page
