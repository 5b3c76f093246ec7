"""The outer run launches the MPI tests itself, so it does not collect them; under mpiexec they are all there is."""

import os
import sys
import threading
from tempfile import mkdtemp

import pytest

# PyTorch asks for the name of each process that meets it: a name server that answers not each question holds it up for 5 s
os.environ.setdefault("RES_OPTIONS", "timeout:1")


def pytest_ignore_collect(collection_path, config):
    under_mpi = config.getoption("--with-mpi", default=False)
    if collection_path.name == "mpi" and collection_path.is_dir() and not under_mpi:
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config):
    """The whole suite, or a mark of it, runs in two processes at once: much of its time is waiting. Named files run in one."""
    is_chosen = config.getoption("numprocesses", default=0) is not None  # 0: without pytest-xdist
    is_whole = config.args_source is config.ArgsSource.TESTPATHS
    is_worker = hasattr(config, "workerinput")
    if is_whole and not (is_chosen or is_worker or config.option.usepdb):
        config.option.numprocesses = 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from tests.support.sharing import Sharing

    return Sharing(config, log)


@pytest.fixture(autouse=True)
def empty_directory(request, tmp_path_factory, monkeypatch):
    """Each test starts in an empty directory: none may depend on where pytest is started, or on what lies there.

    The temporary files of its jobs have another: a killed `mpiexec` of Open MPI leaves some there that are named after its
    process id, and the next one of that id would not start. Ranks under mpiexec take both from their job.
    """
    if not request.config.getoption("--with-mpi", default=False):
        base = tmp_path_factory.getbasetemp()
        monkeypatch.chdir(mkdtemp(prefix="empty", dir=base))
        monkeypatch.setenv("TMPDIR", mkdtemp(prefix="temporary", dir=base))


@pytest.fixture
def excepthooks(monkeypatch):
    """What a command installs for exceptions that nothing catches is taken back."""
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)
