"""Signal handlers that raise while a call waits for a rank that is late: the call ends first, as MPI's own would."""

import pytest

from tests.support.each import EACH, ONE
from tests.support.launching import installations, mpiexec

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)


def all_come_to_the_end(installation, ranks, scenario, arrays="ordinary", **environ):
    output = mpiexec(installation, ranks, scenario, arrays, module="tests.support.handlers", timeout=150, **environ)
    assert output.count("done") == ranks, output


@EACH
def test_repeated_calls_end_first(installation):
    all_come_to_the_end(installation, 3, "repeated", "shared")


@pytest.mark.thorough
@EACH
@pytest.mark.parametrize("scenario", ["first", "repeated"])
@pytest.mark.parametrize("environ", [{}, {"MPICOLL_SHARED_MEMORY": "off"}], ids=["shared memory", "MPI"])
def test_calls_end_first(installation, scenario, environ):
    all_come_to_the_end(installation, 2, scenario, **environ)


@ONE
def test_a_call_that_python_executes_through_mpi_ends_first(installation):
    settings = {"MPICOLL_ENGINE": "python", "MPICOLL_SHARED_MEMORY": "off"}
    all_come_to_the_end(installation, 2, "first", **settings)


@EACH
@pytest.mark.parametrize("environ", [{}, {"MPICOLL_SHARED_MEMORY": "off"}], ids=["shared memory", "MPI"])
def test_a_call_that_stands_still_for_a_second_ends_and_the_others_are_told(installation, environ):
    all_come_to_the_end(installation, 3, "stuck", **environ)
