"""Communicators that one rank gives up: the others are told at once, and nobody's memory changes afterwards."""

import pytest

from tests.support.each import EACH
from tests.support.launching import installations, mpiexec

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)

THROUGH_MPI = {"MPICOLL_SHARED_MEMORY": "off"}


def both_come_to_the_end(installation, scenario, arrays="ordinary", **environ):
    output = mpiexec(installation, 2, scenario, arrays, module="tests.support.given_up", timeout=150, **environ)
    assert output.count("done") == 2, output


@EACH
@pytest.mark.parametrize("scenario", ["late", "root", "free", "scale"])
def test_in_shared_memory(installation, scenario):
    """late: writes into an array that is used again; root: gets what was written there since; free: waits for ever."""
    both_come_to_the_end(installation, scenario, "shared")


@EACH
@pytest.mark.parametrize("scenario", ["late", "root"])
def test_large_messages_beside_it(installation, scenario):
    both_come_to_the_end(installation, scenario)


@EACH
@pytest.mark.parametrize("scenario", ["late", "root", "free", "scale"])
def test_through_mpi(installation, scenario):
    """late: a receive was still posted; scale: into memory that was freed."""
    both_come_to_the_end(installation, scenario, **THROUGH_MPI)


@EACH
@pytest.mark.parametrize("scenario", ["alarms", "waits", "random"])
@pytest.mark.parametrize("environ", [{}, THROUGH_MPI], ids=["shared memory", "MPI"])
def test_handlers_that_raise_anywhere(installation, scenario, environ):
    """200 of them, with ALARMS=200: where the communicator is given up the other rank gets an error that says by whom."""
    both_come_to_the_end(installation, scenario, "shared", **environ)
