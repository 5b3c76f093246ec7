"""The outer run launches the MPI tests itself, so it does not collect them; under mpiexec they are all there is."""

import sys
import threading
from tempfile import mkdtemp

import pytest


def pytest_ignore_collect(collection_path, config):
    under_mpi = config.getoption("--with-mpi", default=False)
    if collection_path.name == "mpi" and collection_path.is_dir() and not under_mpi:
        return True
    return None


@pytest.fixture(autouse=True)
def empty_directory(request, tmp_path_factory, monkeypatch):
    """Each test starts in an empty directory: none may depend on where pytest is started, or on what lies there.

    Ranks under mpiexec start in one that `tests.support.launching` makes for the job.
    """
    if not request.config.getoption("--with-mpi", default=False):
        monkeypatch.chdir(mkdtemp(prefix="empty", dir=tmp_path_factory.getbasetemp()))


@pytest.fixture
def excepthooks(monkeypatch):
    """What a command installs for exceptions that nothing catches is taken back."""
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)
