"""The backend of torch.distributed on any number of ranks: each of its calls, types, operations, futures, bad input."""

import tempfile
import time
import weakref
from datetime import timedelta
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from tests.support.cases import RANK, SIZE
from tests.support.torch_group import TOTAL, each, mine, torch

import torch.distributed as dist

import mpicoll
import mpicoll.torch
from mpicoll.torch.works import Done, Works

pytestmark = [pytest.mark.mpi, pytest.mark.thorough, pytest.mark.usefixtures("group")]


# ---- the calls, waiting and not


@pytest.fixture(params=[False, True], ids=["waits", "async"])
def call(request):
    """A function that makes a call and, if it is one that does not wait, waits."""

    def made(function, *given, **named):
        work = function(*given, async_op=request.param, **named)
        assert (work is not None) == request.param
        if work is not None:
            assert work.wait() and work.is_completed()

    return made


def test_it_is_found_by_its_name(group):
    assert dist.get_backend() == "mpicoll" and (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
    assert group.name() == "mpicoll" and not group.supports_coalescing


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1000,), (300_000,)])
def test_all_reduce(call, shape):
    tensor = mine(*shape)
    call(dist.all_reduce, tensor)
    assert torch.equal(tensor, torch.full(shape, float(TOTAL)))


@pytest.mark.parametrize("make", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[::2]])
def test_tensors_with_gaps(call, make):
    whole = mine(6, 8)
    call(dist.all_reduce, make(whole))
    assert torch.equal(make(whole), torch.full_like(make(whole), TOTAL))
    call(dist.broadcast, make(whole), src=0)


@pytest.mark.parametrize("dtype", [
    torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.complex64,
])  # fmt: skip
def test_types(call, dtype):
    tensor = mine(7, dtype=dtype)
    call(dist.all_reduce, tensor)
    assert torch.equal(tensor, torch.full((7,), TOTAL, dtype=dtype))
    got = each(lambda rank: torch.zeros(7, dtype=dtype))
    call(dist.all_gather, got, mine(7, dtype=dtype))
    assert [one[0].item() for one in got] == list(range(1, SIZE + 1))


def test_bool_and_what_is_only_moved(call):
    tensor = torch.tensor([RANK == 0, False, True])
    call(dist.all_reduce, tensor)
    assert tensor.tolist() == [True, False, True]
    small = torch.tensor([RANK + 1.0]).to(torch.float8_e4m3fn)
    call(dist.broadcast, small, src=SIZE - 1)
    assert small.float().item() == SIZE


@pytest.mark.parametrize("op, expected", [
    (dist.ReduceOp.MAX, SIZE), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, TOTAL / SIZE),
    (dist.ReduceOp.PRODUCT, torch.arange(1, SIZE + 1).prod().item()),
])  # fmt: skip
def test_operations(call, op, expected):
    tensor = mine(4)
    call(dist.all_reduce, tensor, op)
    torch.testing.assert_close(tensor, torch.full((4,), float(expected)))


def test_averages_of_integers_truncate_and_factors_come_first():
    tensor = mine(3, dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [TOTAL // SIZE] * 3
    tensor = mine(3)
    dist.all_reduce(tensor, torch.distributed._make_nccl_premul_sum(2.0))
    assert tensor.tolist() == [2 * TOTAL] * 3


@pytest.mark.parametrize("factor", [0.5, torch.tensor([0.5])], ids=["number", "tensor"])
def test_products_with_a_factor_have_the_type_and_shape_of_the_tensor(factor):
    op = torch.distributed._make_nccl_premul_sum(factor)
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        expected = sum(torch.tensor((rank + 1) / 2).to(dtype).item() for rank in range(SIZE))
        tensor, block = mine(dtype=dtype), torch.zeros(1, dtype=dtype)
        dist.all_reduce(tensor, op)
        dist.reduce_scatter_tensor(block, mine(SIZE, dtype=dtype), op)
        assert tensor.item() == block.item() == expected


def test_rooted(call):
    for root in {0, SIZE - 1}:
        tensor = mine(5)
        call(dist.reduce, tensor, root)
        assert RANK != root or tensor.tolist() == [TOTAL] * 5
        got = each(lambda rank: torch.zeros(2, 3)) if RANK == root else None
        call(dist.gather, mine(2, 3), got, root)
        assert got is None or [one[0, 0].item() for one in got] == list(range(1, SIZE + 1))
        block, given = torch.zeros(4), each(lambda rank: torch.full((4,), rank + 1.0)) if RANK == root else None
        call(dist.scatter, block, given, root)
        assert torch.equal(block, mine(4))


def test_gathers_of_one_tensor_and_in_place(call):
    whole = torch.zeros(SIZE, 3)
    call(dist.all_gather_into_tensor, whole, mine(3))
    assert whole[:, 0].tolist() == list(range(1, SIZE + 1))
    whole = torch.zeros(SIZE * 3)
    part = whole[3 * RANK : 3 * RANK + 3].fill_(RANK + 1)
    call(dist.all_gather_into_tensor, whole, part)  # as FSDP does
    assert whole.view(SIZE, 3)[:, 0].tolist() == list(range(1, SIZE + 1))


def test_uneven_lists(call):
    got = each(lambda rank: torch.zeros(rank + 1))
    call(dist.all_gather, got, torch.full((RANK + 1,), RANK + 1.0))
    assert [one.tolist() for one in got] == each(lambda rank: [rank + 1.0] * (rank + 1))
    block = torch.zeros(RANK + 1)
    call(dist.reduce_scatter, block, each(lambda rank: mine(rank + 1)))
    assert block.tolist() == [TOTAL] * (RANK + 1)


def test_reduce_scatter(call):
    block = torch.zeros(2)
    call(dist.reduce_scatter_tensor, block, mine(2 * SIZE))
    assert block.tolist() == [TOTAL] * 2


def test_each_to_each(call):
    got = torch.zeros(SIZE, 2)
    call(dist.all_to_all_single, got, torch.arange(SIZE * 2.0).view(SIZE, 2) + 100 * RANK)
    assert got.tolist() == each(lambda rank: [2 * RANK + 100 * rank, 2 * RANK + 1 + 100 * rank])
    sent, received = each(lambda rank: mine(rank + 1)), each(lambda rank: torch.zeros(RANK + 1))
    call(dist.all_to_all, received, sent)
    assert [one.tolist() for one in received] == each(lambda rank: [rank + 1] * (RANK + 1))
    rows = torch.zeros(SIZE * (RANK + 1), 2)
    splits = [RANK + 1] * SIZE, each(lambda rank: rank + 1)
    call(dist.all_to_all_single, rows, mine(TOTAL, 2), *splits)
    assert rows[:, 0].tolist() == sorted(range(1, SIZE + 1)) * 1 if RANK == 0 else rows.sum() > 0


def test_sparse_sums():
    tensor = torch.sparse_coo_tensor([[0, RANK + 1]], [1.0, 2.0], (SIZE + 2,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [SIZE, *[2.0] * SIZE, 0.0]


def test_messages():
    if SIZE == 1:
        pytest.skip("one rank has nobody to talk to")
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.zeros(3)
    sent = dist.isend(mine(3), following, tag=7)
    assert dist.recv(got, None, tag=7) == before and got[0].item() == before + 1
    sent.wait()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine(2), following), dist.P2POp(dist.irecv, got[:2], before)])
    assert all(work.wait() for work in works)


def test_objects_and_groups():
    said = [None] * SIZE
    dist.all_gather_object(said, {"rank": RANK})
    assert said == each(lambda rank: {"rank": rank})
    for members in ([0], list(range(SIZE)), list(range(SIZE))[::2]):
        part = dist.new_group(members)
        if RANK in members:
            tensor = mine(2)
            dist.all_reduce(tensor, group=part)
            assert tensor[0].item() == sum(rank + 1 for rank in members)
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=30))


@pytest.mark.skipif(SIZE == 1, reason="nobody to talk to")
@pytest.mark.parametrize("size, got", [(2, "more"), (4, "12")])
def test_messages_of_another_size(size, got):
    """In the future, too, and each time that it is asked for."""
    sent = dist.isend(mine(3), (RANK + 1) % SIZE)
    work = dist.irecv(torch.zeros(size), (RANK - 1) % SIZE)
    for wait in (work.get_future().wait, work.wait, work.wait):
        with pytest.raises(mpicoll.BufferError, match=f"rank {RANK}, .* expected {4 * size} bytes, got {got}"):
            wait()
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    sent.wait()


def test_several_works_have_the_error_of_one():
    error = ValueError()
    failed = SimpleNamespace(result=list, is_success=lambda: False, exception=lambda: error)
    works = Works([Done([]), failed])
    assert not works.is_success() and works.exception() is error


def test_the_default_device_has_no_effect():
    tensor = torch.sparse_coo_tensor([[RANK]], [1.0], (SIZE,))
    with torch.device("meta"):
        dist.barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1.0] * SIZE


@pytest.mark.parametrize("alone", sorted({0, SIZE - 1}))
@pytest.mark.parametrize("limit", [timedelta(0), 0.05])
def test_a_monitored_barrier_to_which_one_rank_comes(limit, alone):
    group = dist.new_group(range(SIZE))
    if RANK == alone and SIZE > 1:
        with pytest.raises(RuntimeError, match="no answer" if alone else "Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(group, limit)
    dist.barrier()
    for _ in range(2):  # what was given up does not count later
        dist.monitored_barrier(group, timedelta(seconds=30))


def test_a_monitored_barrier_of_others():
    group = dist.new_group([0])
    dist.monitored_barrier(group, timedelta(seconds=30))


def test_storages_may_still_be_resized():
    """As FSDP does: what NumPy has once seen could not be."""
    tensor = mine(8)
    dist.all_reduce(tensor)
    tensor.untyped_storage().resize_(0)


def test_tensors_of_calls_that_are_over_are_let_go():
    tensor = mine(10)
    seen, work = weakref.ref(tensor), dist.all_reduce(tensor, async_op=True)
    work.wait()
    del tensor, work
    dist.all_reduce(mine(1), async_op=True).wait()
    for _ in range(1000):  # the thread that has ended the call may not have left it yet
        if seen() is None:
            break
        time.sleep(0.01)
    assert seen() is None


def test_devices_and_options_of_a_group(group):
    """What checkpoints and others ask a group for."""
    assert torch.device("cpu") in group._device_types
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=77), group)
    part = dist.new_group(range(SIZE), timeout=timedelta(seconds=33))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=44), part)
    assert [mpicoll.execute.Context.of(one.comm).timeout for one in (group, part)] == [77, 44]


def test_checkpoints_that_are_saved_beside(tmp_path):
    import torch.distributed.checkpoint as saved
    place = [str(tmp_path)]
    dist.broadcast_object_list(place)
    state = {"weight": mine(4)}
    saved.async_save(state, checkpoint_id=place[0]).result()
    found = {"weight": torch.zeros(4)}
    saved.load(found, checkpoint_id=place[0])
    assert found["weight"].tolist() in each(lambda rank: [rank + 1.0] * 4)


def test_calls_of_the_group_itself(group):
    """In PyTorch's short forms: a root, an operation."""
    tensor = mine(3)
    group.reduce(tensor, 0).wait()
    assert RANK or tensor.tolist() == [TOTAL] * 3
    tensor = mine(3)
    group.reduce(tensor, root=0, op=dist.ReduceOp.MAX).wait()
    assert RANK or tensor.tolist() == [SIZE] * 3
    got = each(lambda rank: torch.zeros(2)) if RANK == 0 else []
    group.gather(got, mine(2), 0).wait()
    assert [one[0].item() for one in got] == each(lambda rank: rank + 1)[: len(got)]
    block = torch.zeros(2)
    group.scatter(block, each(lambda rank: torch.full((2,), rank + 1.0)) if RANK == 0 else [], 0).wait()
    assert torch.equal(block, mine(2))
    group.broadcast(block, 0).wait()
    group.allreduce(block, dist.ReduceOp.SUM).wait()
    assert block.tolist() == [SIZE] * 2
    group.allgather(each(lambda rank: torch.zeros(2)), mine(2)).wait()
    group.reduce_scatter(block, each(lambda rank: mine(2)), dist.ReduceOp.MAX).wait()
    assert block.tolist() == [SIZE] * 2


def test_groups_that_are_split_off(group):
    part = group.split_group([0], group_name="first")
    assert (part is None) == (RANK != 0)
    whole = group.split_group(list(range(SIZE)))
    tensor = mine(2)
    whole.allreduce([tensor]).wait()
    assert tensor.tolist() == [TOTAL] * 2
    if part is not None:
        part.allreduce([tensor]).wait()
        assert tensor.tolist() == [TOTAL] * 2 and part.size() == 1 and part.getGroupName() == "first"
        part.shutdown()
    whole.shutdown()


@pytest.mark.skipif(not hasattr(dist, "shrink_group") or SIZE == 1, reason="newer versions, several ranks")
@pytest.mark.parametrize("flags", [0, 1])
def test_groups_that_are_shrunk(flags):
    """By the ranks that stay, alone."""
    dist.new_group(range(SIZE))
    if RANK == SIZE - 1:
        MPI.COMM_WORLD.Barrier()
        dist.distributed_c10d._abort_process_group()
        return
    left = dist.shrink_group([SIZE - 1], shrink_flags=flags)
    assert left is dist.group.WORLD and dist.get_world_size() == SIZE - 1
    tensor = mine(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [TOTAL - SIZE] * 3
    dist.all_reduce(tensor, group=dist.new_group(range(SIZE - 1)))
    MPI.COMM_WORLD.Barrier()


def test_a_group_beside_gloo_and_after_it():
    """The default group is gloo's, whose ranks need not be numbered as MPI's."""
    dist.destroy_process_group()
    store = dist.FileStore(MPI.COMM_WORLD.bcast(tempfile.mktemp() if RANK == 0 else None), SIZE)
    dist.init_process_group("gloo", store=store, rank=SIZE - 1 - RANK, world_size=SIZE)
    members = list(range(SIZE))[::-2]
    part, whole = dist.new_group(members, backend="mpicoll"), dist.new_group(backend="mpicoll")
    tensor = mine(3)
    dist.all_reduce(tensor, group=whole)
    assert tensor.tolist() == [TOTAL] * 3
    dist.broadcast(tensor := mine(1), 0, group=whole)
    assert tensor.item() == SIZE
    if dist.get_rank() in members:
        dist.all_reduce(tensor := torch.ones(1), group=part)
        assert tensor.item() == len(members)
    dist.destroy_process_group()
    dist.init_process_group("mpicoll")
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == SIZE


def test_env_as_init_method_is_mpis(monkeypatch):
    dist.destroy_process_group()
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    dist.init_process_group("mpicoll", init_method="env://")
    assert dist.get_world_size() == SIZE


def test_frameworks_that_know_other_names():
    dist.destroy_process_group()
    mpicoll.torch.serve_as("gloo")
    try:
        dist.init_process_group("gloo", init_method="env://")
        assert dist.get_backend() == dist.get_backend(dist.new_group(backend="gloo")) == "mpicoll"
        dist.destroy_process_group()
        dist.init_process_group("cpu:gloo,cuda:gloo")
        assert dist.group.WORLD.name() == "mpicoll"
    finally:
        mpicoll.torch.serve_as()


def test_large_tags():
    if SIZE == 1:
        pytest.skip("one rank has nobody to talk to")
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    tags = (1 << 30, (1 << 30) + 1, 1 << 29, 0)
    got = {tag: torch.zeros(1) for tag in tags}
    works = [dist.isend(torch.full((1,), float(tag)), following, tag=tag) for tag in tags]
    works += [dist.irecv(got[tag], before, tag=tag) for tag in reversed(tags)]
    for work in works:
        work.wait()
    assert all(tensor.item() == float(torch.tensor(float(tag))) for tag, tensor in got.items())


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", [dist.ReduceOp.MAX, dist.ReduceOp.MIN])
def test_nan_is_the_largest_and_the_smallest_on_whatever_rank(call, op, dtype, size):
    for rank in {0, SIZE - 1}:
        tensor = mine(size, dtype=dtype)
        if RANK == rank:
            tensor[1] = float("nan")
        call(dist.all_reduce, tensor, op)
        expected = SIZE if op == dist.ReduceOp.MAX else 1
        assert tensor[1].isnan() and tensor[0].item() == tensor[2].item() == expected
        call(dist.reduce, tensor, 0, op)
        assert RANK or tensor[1].isnan()
        block = torch.zeros(size, dtype=dtype)
        call(dist.reduce_scatter_tensor, block, tensor.repeat(SIZE), op)
        assert block[1].isnan()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int32])
def test_averages_of_integers(dtype):
    tensor = torch.full((5,), 7 + RANK, dtype=torch.int64).to(dtype)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.to(torch.int64).tolist() == [(7 * SIZE + TOTAL - SIZE) // SIZE] * 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 31, 33_000, 200_000])
def test_sums_of_16_bits_are_rounded_once(dtype, size):
    """As those of float32 would be, with two ranks; each addition once."""
    values = [torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(SIZE)]
    tensor = values[RANK].clone()
    dist.all_reduce(tensor)
    total = torch.stack([one.float() for one in values]).sum(0)
    if SIZE <= 2:
        assert torch.equal(tensor, total.to(dtype))
    torch.testing.assert_close(tensor.float(), total, rtol=2e-2, atol=2e-2 * SIZE)


def test_the_builtin_hook_of_16_bits():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    for _ in range(2):
        model(torch.full((2, 4), RANK + 1.0)).sum().backward()
    assert model.module.weight.grad.flatten()[0].item() == 4 * TOTAL / SIZE


# ---- futures


def test_futures_and_callbacks_that_begin_calls():
    """Ranks may run callbacks in any order; what these begin is still matched."""
    works = [dist.all_reduce(mine(size), async_op=True) for size in (1, 200_000, 10, 50_000, 3)]

    def again(future):
        tensor = future.value()[0].clone()
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0] + 0

    futures = [work.get_future().then(again) for work in works]
    assert [future.wait()[0].item() for future in futures] == [TOTAL * SIZE] * 5
    assert torch.futures.wait_all([work.get_future() for work in works])


def test_a_future_has_what_went_wrong_in_a_callback():
    future = dist.all_reduce(mine(3), async_op=True).get_future().then(lambda done: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.wait()


def test_profiles_have_our_calls():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(mine(3))
        dist.broadcast(mine(3), 0)
    assert {"mpicoll:all_reduce", "mpicoll:broadcast"} <= {event.name for event in profile.events()}


def test_modes_see_our_calls():
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            said.append(str(func))
            return func(*args, **(kwargs or {}))

    said, tensor = [], mine(3)
    with CommDebugMode() as counted, Names():
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.all_gather(each(lambda rank: torch.zeros(3)), tensor)
        dist.reduce_scatter_tensor(mine(2), mine(2 * SIZE))
        dist.barrier()
    assert tensor.tolist() == [TOTAL * SIZE] * 3
    ops = torch.ops.c10d
    found = counted.get_comm_counts()
    assert [found[op] for op in (ops.allreduce_, ops.allgather_, ops._reduce_scatter_base_)] == [2, 1, 1]
    assert said.count("c10d.allreduce_.default") == 2 and "c10d.barrier.default" in said


# ---- bad input


@pytest.mark.parametrize("wrong", [
    lambda: dist.all_reduce(mine(3), dist.ReduceOp.BAND), lambda: dist.all_reduce(mine(3).to(torch.float8_e4m3fn)),
    lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (3,)), dist.ReduceOp.MAX),
    lambda: dist.all_reduce(mine(3, dtype=torch.bool), dist.ReduceOp.AVG),
    lambda: dist.reduce(mine(3, dtype=torch.bool), 0, torch.distributed._make_nccl_premul_sum(2.0)),
])  # fmt: skip
def test_what_cannot_be_reduced_is_a_runtime_error_as_with_gloo(wrong):
    with pytest.raises(RuntimeError, match="mpicoll (cannot|knows)|integers"):
        wrong()
    dist.barrier()


@pytest.mark.parametrize("wrong", [
    lambda: dist.all_gather_into_tensor(torch.zeros(SIZE, dtype=torch.int32), mine(1)),
    lambda: dist.reduce_scatter_tensor(torch.zeros(1, dtype=torch.int32), mine(SIZE)),
    lambda: dist.all_to_all_single(torch.zeros(SIZE, dtype=torch.int32), mine(SIZE)),
    lambda: dist.all_gather([torch.zeros(1, dtype=torch.int32)] * SIZE, mine(1)),
])  # fmt: skip
def test_types_that_differ(wrong):
    """Bits of one are never taken for the other."""
    with pytest.raises((RuntimeError, ValueError), match="type"):
        wrong()


def test_errors_name_the_line_of_the_user():
    if SIZE == 1:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(mpicoll.CollectiveMismatch, match=r"test_torch_backend\.py:\d+"):
        dist.all_reduce(mine(100 + RANK))


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="expected .* tensors, one per rank"):
        dist.all_gather([torch.zeros(3)] * (SIZE + 1), mine(3))
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_to_all_single(torch.zeros(SIZE), torch.zeros(SIZE), [5] * SIZE, [5] * SIZE)


def test_ranks_with_other_sizes_are_told(group):
    if SIZE == 1:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(mpicoll.CollectiveMismatch, match="ranks do not make the same call"):
        dist.all_reduce(mine(100 + RANK))


def test_no_use_after_the_end(group):
    dist.destroy_process_group()
    with pytest.raises(ValueError):
        dist.all_reduce(mine(3))
    with pytest.raises(ValueError, match="freed"):
        group.allreduce([mine(3)]).wait()


@pytest.mark.skipif(SIZE == 1, reason="one rank is all ranks")
def test_a_group_of_some_ranks_of_mpi_is_refused():
    """At once: the others may never come."""
    dist.destroy_process_group()
    part = {"rank": 0, "world_size": SIZE - 1}
    for is_last in (False, True):
        if is_last == (RANK == SIZE - 1):
            with pytest.raises(mpicoll.LaunchError, match=f"rank 0 of {SIZE - 1}, MPI rank {RANK} of {SIZE}"):
                dist.init_process_group("mpicoll", store=dist.HashStore(), **part)
            with pytest.raises(mpicoll.LaunchError, match="was given .*, MPI says"):
                dist.init_process_group("mpicoll", **part)
        MPI.COMM_WORLD.Barrier()


def test_other_devices_may_have_other_backends():
    dist.destroy_process_group()
    dist.init_process_group("cpu:mpicoll,cuda:gloo", timeout=timedelta(seconds=60))
    tensor = mine(5)
    dist.all_reduce(tensor)
    assert tensor[0].item() == TOTAL and dist.group.WORLD._get_backend(torch.device("cuda")).name() == "gloo"
    assert MPI.Is_initialized()


def test_calls_with_tensors_of_another_backend():
    dist.destroy_process_group()
    dist.init_process_group("cpu:gloo,cuda:mpicoll", timeout=timedelta(seconds=60))
    block, whole = torch.zeros(2), torch.zeros(SIZE, 2)
    dist.all_gather(list(whole), mine(2))
    assert whole.tolist() == each(lambda rank: [rank + 1] * 2)
    dist.all_gather_into_tensor(whole, mine(1, 2) + 1)
    assert whole.tolist() == each(lambda rank: [rank + 2] * 2)
    dist.all_to_all_single(whole, mine(SIZE, 2))
    assert whole.tolist() == each(lambda rank: [rank + 1] * 2)
    dist.reduce_scatter(block, each(lambda rank: mine(2)))
    assert block.tolist() == [TOTAL] * 2
    dist.broadcast(block.fill_(RANK), SIZE - 1)
    dist.all_reduce(tensor := mine(2))
    dist.group.WORLD.allreduce(opts=dist.AllreduceOptions(), tensors=[other := mine(2)]).wait()
    assert block.tolist() == [SIZE - 1] * 2 and tensor.tolist() == other.tolist() == [TOTAL] * 2
    if SIZE > 1:
        sent = dist.isend(mine(1), (RANK + 1) % SIZE)
        assert dist.recv(torch.zeros(1)) == (RANK - 1) % SIZE
        sent.wait()
    dist.monitored_barrier(timeout=timedelta(seconds=30))
