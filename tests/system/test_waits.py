"""Waits where nobody looks: in MPI's own functions, and at the end of the program."""

import re

import pytest

from tests.support.each import EACH, ONE, OTHER
from tests.support.launching import installations, mpiexec

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)


def waits(installation, *arguments, **how):
    return mpiexec(installation, 2, *arguments, module="tests.support.waits", **how)


@EACH
@pytest.mark.parametrize("scenario", ["Waitall", "Testall", "Wait"])
def test_the_limit_of_a_request(installation, scenario):
    """MPI's functions raise MPI.Exception, and the reason is printed."""
    said_why(installation, scenario)


@pytest.mark.thorough
@EACH
@pytest.mark.parametrize("scenario", ["Waitany", "Waitsome"])
def test_the_limit_of_one_of_several_requests(installation, scenario):
    said_why(installation, scenario)


def said_why(installation, scenario):
    output = waits(installation, scenario, timeout=150)
    assert output.count("done") == 2, output
    assert scenario == "Wait" or "CollectiveTimeout: rank 0: no progress for 0." in output, output


@pytest.mark.thorough
@ONE
def test_a_process_that_was_stopped_has_not_waited(installation):
    output = waits(installation, "stopped", timeout=150)
    assert output.count("done") == 2, output


@EACH
def test_requests_are_completed_until_mpi_is_finalized(installation):
    """Also in a function of `atexit` that was registered before mpicoll's own."""
    output = waits(installation, "exit", timeout=150)
    assert output.count("done") == 2, output


@EACH
@pytest.mark.parametrize("arguments", [("small",), ("watched", "timeout")], ids=" ".join)
def test_a_call_of_mpis_own_where_a_rank_gave_up(installation, arguments):
    ends(installation, *arguments)


@pytest.mark.thorough
@EACH
@pytest.mark.parametrize("arguments", [("small", "timeout"), ("watched",)], ids=" ".join)
def test_others_of_mpis_own_where_a_rank_gave_up(installation, arguments):
    ends(installation, *arguments)


def ends(installation, *arguments):
    output = waits(installation, *arguments, timeout=150, check=False)
    where = r"mpicoll: rank 1 in (Allreduce|Barrier).* at \S+waits.py:\d+: "
    why = r"rank 0 gave this communicator up: Allreduce \(ring\).* ended by Interrupted\(\)\n"
    ends = r"MPI's own call cannot be interrupted: the job ends"
    assert re.search(where + why + ends, output) and "done" not in output, output


@EACH
@pytest.mark.parametrize("left", [0, 1])
def test_a_rank_without_descriptors(installation, left):
    """None: an error on both ranks. One: they share no memory, and work."""
    refused_or_working(installation, left)


@pytest.mark.thorough
@OTHER
@pytest.mark.parametrize("left", [2, 3, 4, 6])
def test_a_rank_with_few_descriptors(installation, left):
    refused_or_working(installation, left)


def refused_or_working(installation, left):
    output = waits(installation, "descriptors", left, timeout=150)
    assert output.count("done") == 2 and output.count("refused") == (0 if left else 2), output
