"""What several of the tests here need."""

import pytest

from mpicoll.algorithms import registry as registered


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="compares with PyTorch where it is installed")


@pytest.fixture
def registry(monkeypatch):
    """A registry whose changes are forgotten."""
    copied = {name: dict(words) for name, words in registered._REGISTRY.items()}
    monkeypatch.setattr(registered, "_REGISTRY", copied)
