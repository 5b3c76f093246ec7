"""CONTRIBUTING.md quotes tests of this suite as they are."""

import pytest

from tests.support.launching import ROOT
from tests.support.pages import blocks

QUOTES = [block.partition("\n") for block in blocks(ROOT / "CONTRIBUTING.md", "python")]


def test_one_test_of_each_kind_is_quoted():
    folders = {heading.split("/")[1] for heading, _, _ in QUOTES}
    assert {"unit", "mpi", "system"} <= folders


@pytest.mark.parametrize(("heading", "_", "quote"), QUOTES, ids=[heading for heading, _, _ in QUOTES])
def test_a_quote_stands_in_its_file(heading, _, quote):
    path = heading.removeprefix("# ")
    assert quote in (ROOT / path).read_text(), f"CONTRIBUTING.md no longer quotes {path} as it is"
