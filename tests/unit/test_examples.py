"""Examples in docstrings that show a result: they run, and the result is what is shown."""

import doctest
from importlib import import_module

import pytest

from tests.support.launching import ROOT

PACKAGE = ROOT / "mpicoll"
#: torch: what it shows needs a process group
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text() and path.parent.name != "torch"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for docstring in doctest.DocTestFinder().find(import_module(name)):
        if any(example.want for example in docstring.examples):
            runner.run(docstring)
    assert not runner.failures


def test_there_are_some():
    assert len(MODULES) > 40
