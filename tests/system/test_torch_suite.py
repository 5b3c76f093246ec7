"""The PyTorch backend in jobs of its own: PyTorch's tests of its backends, trainings, launches and ends that go wrong.

Without PyTorch beside an MPI these are skipped. All of PyTorch's tests, on gloo too: MPICOLL_TEST_ALL=1, a quarter of an hour.
"""

import subprocess
import sys

import pytest

from tests.support.each import ALL, EACH
from tests.support.launching import ROOT, environment, mpiexec
from tests.support.torch_backend import require_torch, suite

#: what gloo passes and mpicoll does not, each for what it is
DIFFERENT = {"test_get_backend": "asks for the name gloo"}
#: some of each kind, for every run
FEW = ("test_all_gather_coalesced_simple", "test_all_reduce_sum_async", "test_all_to_all_single_unequal_split",
       "test_barrier_group", "test_ddp_comm_hook_logging", "test_gather_object", "test_isend",
       "test_monitored_barrier_wait_all_ranks",
       "test_reduce_scatter_tensor_cpu", "test_send_recv_any_source", "test_sparse_all_reduce_sum")  # fmt: skip


@EACH
def test_pytorchs_own_tests(installation):
    require_torch(installation)
    found = {backend: suite.run(installation.python, installation.mpiexec, 3, backend, () if ALL else FEW)
             for backend in ("gloo", "mpicoll")}  # fmt: skip
    passed = {backend: {name for name, result in results.items() if result == suite.PASSED}
              for backend, results in found.items()}  # fmt: skip
    assert passed["gloo"] - passed["mpicoll"] <= set(DIFFERENT), found["mpicoll"]
    assert len(passed["mpicoll"]) >= (80 if ALL else 5)


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
    done = subprocess.run([installation.python, "-c", code], capture_output=True, text=True, env=environment(**more), cwd=ROOT)
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
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=300)
    assert (done.returncode == 0) == check, done.stdout + done.stderr
    return done.stdout + done.stderr
