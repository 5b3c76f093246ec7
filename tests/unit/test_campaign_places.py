"""Campaigns and tests that kill ranks name functions of mpicoll: what was renamed would kill nobody, and prove nothing."""

import re
from importlib import import_module
from operator import attrgetter

import pytest

from benchmarks.run import after_death, survive, survive_fits
from tests.support.launching import ROOT


def places(value):
    """All texts "module:Class.function" in nested tables."""
    if isinstance(value, str):
        return {value} if value.startswith("mpicoll.") and ":" in value else set()
    if isinstance(value, dict):
        value = value.values()
    return set().union(*map(places, value)) if isinstance(value, (tuple, list, type({}.values()))) else set()


CAMPAIGNS = set().union(*(places(vars(module)) for module in (after_death, survive, survive_fits)))
TESTS = {
    place
    for file in (ROOT / "tests" / "system").rglob("*.py")
    for place in re.findall(r'"(mpicoll\.[\w.]+:[\w.]+)"', file.read_text(encoding="utf-8"))
}
NAMED = sorted(CAMPAIGNS | TESTS)


@pytest.mark.parametrize("place", NAMED)
def test_a_place_of_a_death_exists(place):
    module, name = place.split(":")
    assert callable(attrgetter(name)(import_module(module)))


def test_there_are_places():
    assert len(CAMPAIGNS) > 20 and len(TESTS) > 5
