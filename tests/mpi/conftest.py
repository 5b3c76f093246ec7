"""Under mpiexec: one reporter, and a failure on any rank ends the job instead of leaving the others to wait."""

import sys
import time

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.train import Dataset

WORLD = MPI.COMM_WORLD


@pytest.hookimpl(trylast=True)  # the reporter is registered in this hook too
def pytest_configure(config):
    if WORLD.Get_rank():
        config.pluginmanager.unregister(name="terminalreporter")


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


@pytest.fixture(scope="session")
def data():
    """61 training samples that a small network tells apart, and 15 of test."""
    source = numpy.random.default_rng(1)
    labels = source.integers(0, 4, 76)
    return Dataset.split(2 * source.standard_normal((4, 7))[labels] + source.standard_normal((76, 7)), labels)
