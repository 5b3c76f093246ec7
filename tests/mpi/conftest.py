"""Under mpiexec: one reporter, and a failure on any rank ends the job instead of leaving the others to wait."""

import gc
import shutil
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine, gpu
from mpicoll.support import settings
from mpicoll.train import Dataset
from tests.support import fakes
from tests.support.fakes import fakecupy, fakenccl

WORLD = MPI.COMM_WORLD


@pytest.hookimpl(trylast=True)  # the reporter is registered in this hook too
def pytest_configure(config):
    if WORLD.Get_rank():
        config.pluginmanager.unregister(name="terminalreporter")


@pytest.fixture(scope="module", autouse=True)
def little_garbage():
    """Tests, their reports and imported packages stay to the end: the garbage collector, which many tests call, skips them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report):
    _end_job_if_failed(report)


def pytest_collectreport(report):
    _end_job_if_failed(report)


def _end_job_if_failed(report):
    if report.failed and WORLD.Get_size() > 1:
        print(f"\nrank {WORLD.Get_rank()}: {report.nodeid}\n{report.longreprtext}", file=sys.__stderr__, flush=True)
        time.sleep(0.5)  # mpiexec forwards what was printed; what it has not read by the abort is lost
        WORLD.Abort(1)


@pytest.fixture
def comm():
    """A communicator of its own for each test."""
    communicator = mpicoll.Communicator(WORLD.Dup())
    yield communicator
    if communicator != MPI.COMM_NULL:
        communicator.Free()


def pytest_generate_tests(metafunc):
    """Each test runs with the interpreter of programs that users get, and under `-m thorough` with the reference.

    The mark `interpreters` names others, with which a test always runs; none: it chooses for itself.
    """
    has_extension = engine.status().extension is not None
    mark = metafunc.definition.get_closest_marker("interpreters")
    names = mark.args if mark else (settings.PYTHON, settings.AUTO)
    left = [pytest.mark.reference] if mark else [pytest.mark.reference, pytest.mark.thorough]
    cases = [pytest.param(name, marks=left * (name == settings.PYTHON)) for name in names]
    if names:
        metafunc.parametrize("interpreter", cases if has_extension else [settings.PYTHON], indirect=True)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch, request):
    """Which interpreter programs run in."""
    name = getattr(request, "param", None)
    if name:
        monkeypatch.setenv(settings.ENGINE, name)
    return name


@pytest.fixture
def group():
    """The default process group of torch.distributed, on the backend."""
    import torch.distributed as dist

    dist.init_process_group("mpicoll", timeout=timedelta(seconds=60))
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def directory(comm):
    made = comm.bcast(tempfile.mkdtemp() if WORLD.Get_rank() == 0 else None)
    yield Path(made)
    comm.Barrier()
    if WORLD.Get_rank() == 0:
        shutil.rmtree(made)


@pytest.fixture(scope="session")
def data():
    """61 training samples that a small network tells apart, and 15 of test."""
    source = numpy.random.default_rng(1)
    labels = source.integers(0, 4, 76)
    return Dataset.split(2 * source.standard_normal((4, 7))[labels] + source.standard_normal((76, 7)), labels)


@pytest.fixture
def xp(monkeypatch):
    """The stand-in for CuPy."""
    monkeypatch.setattr(gpu.awareness, "last_trial", lambda: None)  # whatever this machine keeps
    with fakes.cupy_is(fakecupy):
        fakecupy.log.clear()
        fakecupy.copies.clear()
        fakecupy.contexts.clear()
        yield fakecupy
        fakecupy.cuda.Device(0).use()


@pytest.fixture
def no_cupy():
    """CuPy is not installed."""
    with fakes.cupy_is(None):
        yield


@pytest.fixture
def nccl(xp, monkeypatch):
    """The stand-in for NCCL; `xp` then has it."""
    return fakenccl.install(monkeypatch, xp)


@pytest.fixture(params=["auto", "direct"])
def mode(request, monkeypatch):
    """How device memory travels, over an MPI that takes device pointers where it gets them."""
    as_asked_for(request.param, monkeypatch)
    monkeypatch.setattr(fakecupy, "aware", request.param == "direct")
    return request.param


def as_asked_for(mode, monkeypatch):
    """MPICOLL_GPU, and where it asks for device pointers, a trial that has shown that MPI takes them."""
    monkeypatch.setenv("MPICOLL_GPU", mode)
    monkeypatch.setattr(gpu.awareness, "_settled", lambda: gpu.awareness.Result(True, "a test says so", ""))
