"""The PyTorch backend in jobs of its own: PyTorch's tests of its backends, trainings, launches and ends that go wrong.

Without PyTorch beside an MPI these are skipped.
"""

import subprocess
import sys

import pytest

from tests.support.each import ALL, EACH
from tests.support.launching import environment, installations, mpiexec
from tests.support.torch_backend import require_torch, suite

pytestmark = pytest.mark.thorough
#: tests that pass on no backend here, and would each start the job anew: they want a GPU, NCCL or torchvision
ABSENT = ("test_SyncBatchNorm_process_group", "test_all_to_all_cuda", "test_all_to_all_cuda_complex",
          "test_all_to_all_full_group_cuda", "test_batch_isend_irecv_mixed_backend_err",
          "test_batch_isend_irecv_op_err")  # fmt: skip
#: what gloo passes and mpicoll does not, each for what it is
DIFFERENT = {"test_get_backend": "asks for the name gloo"}
#: on so many ranks it fails on gloo too
OF_FOUR = ("test_new_subgroups_with_group_param",)
FOUND = installations()
#: even numbers of ranks with the first MPI, odd ones with the last. MPICOLL_TEST_ALL=1: each number with each MPI
SUITES = [(mpi, ranks) for ranks in (2, 3, 4) for mpi in (FOUND if ALL else FOUND[-1:] if ranks % 2 else FOUND[:1])]


@pytest.mark.parametrize(("installation", "ranks"), SUITES, ids=lambda value: getattr(value, "name", value))
def test_pytorchs_own_tests(installation, ranks):
    """All that gloo passes; gloo is asked about those that fail."""
    require_torch(installation)
    left_out = {*ABSENT, *DIFFERENT, *(() if ranks >= 4 else OF_FOUR)}
    found = suite.run(installation.python, installation.mpiexec, ranks, "mpicoll", but=left_out)
    failed = [name for name, result in found.items() if result not in (suite.PASSED, suite.SKIPPED)]
    beside = suite.run(installation.python, installation.mpiexec, ranks, "gloo", failed) if failed else {}
    worse = {name: found[name] for name in failed if beside[name] == suite.PASSED}
    assert not worse, "\n".join(f"{name}: {result}" for name, result in worse.items())
    assert sum(result == suite.PASSED for result in found.values()) >= 95


@EACH
def test_trainings_equal_one_process(installation):
    require_torch(installation)
    output = mpiexec(installation, 2, module="tests.support.torch_backend.trainings")
    assert output.count(" on 2 ranks") == 13


@EACH
def test_a_rank_that_fails_ends_the_job_with_its_traceback(installation):
    output = job(installation, "if dist.get_rank() == 1: 1 / 0\ndist.barrier()")
    assert "ZeroDivisionError" in output and "mpicoll: rank 1 failed, the job ends" in output


@EACH
def test_a_rank_that_does_not_come_is_told(installation):
    code = "import time\nif dist.get_rank() == 1: time.sleep(6)\nelse: dist.all_reduce(torch.ones(200_000))"
    assert "rank 0: no progress for" in job(installation, code, "timeout=timedelta(seconds=2)")


@EACH
def test_torchrun_is_told(installation):
    require_torch(installation)
    code = 'import mpicoll.torch, torch; torch.distributed.init_process_group("mpicoll")'
    more = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2"}
    done = subprocess.run([installation.python, "-c", code], capture_output=True, text=True, env=environment(**more))
    assert 'torchrun started 2 processes' in done.stderr and '"mpiexec -n 2 python script.py"' in done.stderr


@EACH
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_load_data(installation, method, tmp_path):
    require_torch(installation)
    script = tmp_path / "loads.py"
    script.write_text(f"""
import torch, mpicoll.torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    dist.init_process_group("mpicoll")
    data = TensorDataset(torch.ones(8, 3))
    for rows, in DataLoader(data, 2, num_workers=2, multiprocessing_context={method!r}):
        dist.all_reduce(rows)
    print("loaded", rows[0, 0].item())
    dist.destroy_process_group()
""")
    output = _run(installation, script)
    assert output.count("loaded 2.0") == 2


def test_importing_it_starts_no_mpi_nor_does_another_backend():
    pytest.importorskip("torch", reason="imports PyTorch where it is installed")
    code = ("import mpicoll.torch, sys, torch.distributed as dist\n"
            "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
            "dist.monitored_barrier()\ndist.destroy_process_group()\nsys.exit('mpi4py.MPI' in sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def job(installation, code, options=""):
    """What 2 ranks print that run this after the process group is there, and end badly."""
    require_torch(installation)
    program = ("import torch, mpicoll.torch, torch.distributed as dist\nfrom datetime import timedelta\n"
               f'dist.init_process_group("mpicoll", {options})\n{code}\n')  # fmt: skip
    return _run(installation, "-c", program, check=False)


def _run(installation, *words, check=True):
    command = [installation.mpiexec, "-n", "2", installation.python, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert (done.returncode == 0) == check, done.stdout + done.stderr
    return done.stdout + done.stderr
