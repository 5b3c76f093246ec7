"""How calls of the PyTorch backend end that cannot come to their end, and what launchers tell scripts: jobs of their own.

Each job prints what it found, and "fine" on each rank where all was as it should be.
"""

import subprocess

import pytest

from tests.support.each import EACH
from tests.support.launching import environment
from tests.support.torch_backend import require_torch

pytestmark = pytest.mark.thorough

HEAD = """
import glob, os, sys, threading, time
import torch, mpicoll, mpicoll.torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed.distributed_c10d import _abort_process_group

def begin(seconds):
    dist.init_process_group("mpicoll", timeout=timedelta(seconds=seconds))
    return dist.get_rank()

def works():
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()

def fails(call, kind, *words):
    began = time.monotonic()
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return time.monotonic() - began
    raise AssertionError("no error")

def fine():
    # without MPI_Finalize, which waits for what was given up; together, as Open MPI ends all ranks where one leaves so
    print("fine", flush=True)
    open("fine" + os.environ["RANK"], "w").close()
    until = time.monotonic() + 60
    while len(glob.glob("fine*")) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    os._exit(0)
"""


def run(installation, code, ranks=2, **more):
    """What ranks print that run this."""
    require_torch(installation)
    command = [installation.mpiexec, "-n", str(ranks), installation.python, "-c", HEAD + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=300)
    assert done.stdout.count("fine") == ranks, done.stdout + done.stderr
    return done.stdout + done.stderr


@EACH
@pytest.mark.parametrize("form", ["", ", async_op=True).wait("])
def test_the_limit_of_a_group_holds_for_small_calls(installation, form):
    """They are MPI's own; and a rank that is busy elsewhere is not called dead."""
    output = run(installation, f"""
rank = begin(2)
works()
if rank == 0:
    fails(lambda: dist.all_reduce(torch.ones(1){form}), mpicoll.CollectiveTimeout, "no progress", "rank 1")
    dist.distributed_c10d._get_default_store().set("over", "1")
else:
    dist.distributed_c10d._get_default_store().wait(["over"], timedelta(seconds=120))  # in which it sleeps
fine()
""")
    assert "dead" not in output and "no answer" not in output


@EACH
def test_the_limit_may_be_changed(installation):
    run(installation, """
rank = begin(600)
works()
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2))
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    fails(lambda: dist.all_reduce(torch.ones(1)), mpicoll.CollectiveTimeout, "no progress")
    store.set("over", "1")
else:
    store.wait(["over"], timedelta(seconds=120))
fine()
""")


@EACH
def test_a_limit_holds_where_nobody_waits(installation):
    """DistributedDataParallel waits in C++."""
    run(installation, """
rank = begin(2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    fails(lambda: model(torch.ones(2, 4)).sum().backward(), RuntimeError, "no progress")
    store.set("over", "1")
else:
    store.wait(["over"], timedelta(seconds=120))
fine()
""")


@EACH
@pytest.mark.parametrize("size", [3, 200_000])
def test_a_group_is_made_anew_after_a_timeout(installation, size):
    """What was given up is under way in MPI all the time."""
    run(installation, f"""
rank = begin(2)
works()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    work = dist.all_reduce(torch.ones({size}), async_op=True)
    fails(work.wait, mpicoll.CollectiveTimeout, "no progress")
    store.set("over", "1")
    store.wait(["gone"], timedelta(seconds=120))
else:
    store.wait(["over"], timedelta(seconds=120))
    store.set("gone", "1")
dist.destroy_process_group()
begin(60)
for _ in range(50):
    works()
fine()
""")


@EACH
@pytest.mark.parametrize("call", ["dist.all_reduce(torch.ones(1))", "dist.all_reduce(torch.ones(200_000))",
                                  "dist.all_reduce(torch.ones(9), async_op=True).wait()", "dist.barrier()"])  # fmt: skip
def test_abort_ends_calls_at_once(installation, call):
    """On the rank that aborts, from any of its threads, long before the limit."""
    run(installation, f"""
rank = begin(600)
works()
if rank == 0:
    timer = threading.Timer(1, _abort_process_group)
    timer.start()
    fails(lambda: {call}, RuntimeError, "aborted")
    timer.join()
    assert not dist.is_initialized()
else:
    _abort_process_group()
begin(60)
works()
fine()
""")


@EACH
@pytest.mark.parametrize("form", ["", ", async_op=True).wait("])
def test_other_sizes_are_told_though_each_was_met_before(installation, form):
    """MPICH adds up what fits, and says nothing; Open MPI raises an error of its own."""
    run(installation, f"""
rank = begin(4)
for size in (100, 101):
    dist.all_reduce(torch.ones(size){form})

def go_on():
    dist.all_reduce(torch.ones(100 + rank){form})
    for _ in range(200):
        dist.all_reduce(torch.ones(100){form})

fails(go_on, RuntimeError)
fine()
""")


@EACH
def test_a_group_may_be_split_on_one_rank(installation):
    """It ended in a segmentation fault."""
    run(installation, """
begin(60)
part = dist.group.WORLD.split_group([0])
part.allreduce([torch.ones(2)]).wait()
fine()
""", ranks=1)


@EACH
def test_scripts_that_ask_the_environment(installation):
    """Before MPI is started: `import mpicoll.torch` is enough."""
    output = run(installation, """
assert "mpi4py.MPI" not in sys.modules
print(*(f"{name}={os.environ[name]}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")), flush=True)
dist.init_process_group("mpicoll", init_method="env://", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
works()
fine()
""")
    for rank in range(2):
        assert f"RANK={rank} WORLD_SIZE=2 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=2" in output


@EACH
def test_programs_that_know_gloo_alone(installation):
    run(installation, """
dist.init_process_group("gloo")
assert dist.get_backend() == "mpicoll"
works()
fine()
""", MPICOLL_TORCH_AS="gloo")
