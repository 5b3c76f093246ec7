"""What several of the tests here need."""

from pathlib import Path

import pytest

from mpicoll.algorithms import registry as registered
from tests.support.fakes.metering import Clock


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    """`-m quick` runs all that is here, but for what takes seconds each, which is marked `slow`, or needs PyTorch."""
    for item in items:
        left_out = item.get_closest_marker("slow") or item.get_closest_marker("thorough")
        if HERE in item.path.parents and not left_out:
            item.add_marker(pytest.mark.quick)


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="compares with PyTorch where it is installed")


@pytest.fixture
def registry(monkeypatch):
    """A registry whose changes are forgotten."""
    copied = {name: dict(words) for name, words in registered._REGISTRY.items()}
    monkeypatch.setattr(registered, "_REGISTRY", copied)


@pytest.fixture
def clock(monkeypatch):
    """The time, for the meter, stands still until it is told otherwise."""
    made = Clock()
    for module in ("meter", "clock"):
        monkeypatch.setattr(f"mpicoll.train.monitor.{module}.perf_counter", made)
    return made
