"""What is copied between host and device, when, and in which streams: seen by the strict stand-in's log."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import select
from tests.support.cases import RANK, SIZE, same
from tests.support.fakes.arrays import Foreign, torch_in_stream

pytestmark = pytest.mark.mpi

COUNT = 1536  # float64, 12 KiB: pieces of 1 KiB
SHORT = 420 * SIZE  # 16 bits


@pytest.fixture
def staged(xp, monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", "staged")
    return xp


def copied(xp, kind):
    """Bytes copied so far: kind: "fetch" or "put"."""
    return sum(nbytes for what, nbytes in xp.copies if what == kind)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("segment_bytes", [None, 1024])
@pytest.mark.parametrize("word", ["ring", "halving_doubling", "tree"])
def test_one_copy_down_and_one_up(comm, staged, word, segment_bytes):
    data, total = staged.array(np.ones(COUNT)), staged.array(np.zeros(COUNT))
    comm.Allreduce(MPI.IN_PLACE, data, algorithm=word, segment_bytes=segment_bytes)
    assert copied(staged, "fetch") == data.nbytes and copied(staged, "put") <= data.nbytes
    same(data, np.full(COUNT, 1.0 * SIZE))
    staged.copies.clear()
    comm.Allreduce(data, total, algorithm=word, segment_bytes=segment_bytes)
    assert copied(staged, "fetch") == data.nbytes and copied(staged, "put") == total.nbytes
    same(total, np.full(COUNT, 1.0 * SIZE * SIZE))
    assert "add" not in staged.log  # the host reduces


@pytest.mark.parametrize("word", ["binomial", "scatter_allgather", "pipeline"])
def test_a_broadcast_is_copied_once(comm, staged, word):
    data = staged.array(np.full(COUNT, 1.0 * RANK))
    comm.Bcast(data, SIZE - 1, algorithm=word)
    same(data, np.full(COUNT, SIZE - 1.0))
    mine, others = ("fetch", "put") if SIZE - 1 == RANK else ("put", "fetch")
    assert copied(staged, mine) == data.nbytes * (SIZE > 1) and copied(staged, others) == 0


def test_what_is_only_received_is_never_fetched(comm, staged):
    mine, whole = staged.array(np.full(COUNT, 1.0 * RANK)), staged.array(np.zeros(COUNT * SIZE))
    comm.Allgather(mine, whole, algorithm="ring")
    assert copied(staged, "fetch") == mine.nbytes and copied(staged, "put") == whole.nbytes
    same(whole, np.repeat(np.arange(1.0 * SIZE), COUNT))


@pytest.mark.mpi(min_size=2)
def test_pieces_flow(comm, staged):
    """The first piece is back on the device before the last one has left it."""
    data = staged.array(np.ones(8 * COUNT))
    comm.Allreduce(MPI.IN_PLACE, data, algorithm="ring", segment_bytes=1 << 10)
    kinds = [kind for kind, _ in staged.copies]
    assert kinds.index("put") < len(kinds) - 1 - kinds[::-1].index("fetch")
    same(data, np.full(8 * COUNT, 1.0 * SIZE))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("segment_bytes", [None, 1024])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("method", "word"), [
    ("Allreduce", "ring"), ("Allreduce", "recursive_doubling"), ("Allreduce", "reduce_bcast"), ("Allreduce", "circulant"),
    ("Reduce_scatter_block", "ring"), ("Reduce", "binomial"),
])  # fmt: skip
def test_16_bit_numbers_are_reduced_on_the_device(comm, staged, method, word, dtype, segment_bytes):
    bits = np.dtype(dtype) if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    numbers = np.arange(SHORT) % 7
    wanted = (numbers * SIZE + sum(range(SIZE))).astype(bits)
    for in_place in (False, True):
        data, total = staged.array((numbers + RANK).astype(bits)), staged.array(np.zeros(SHORT, bits))
        result, part = data if in_place else total, slice(None)
        if method == "Reduce_scatter_block":
            part = slice(RANK * SHORT // SIZE, (RANK + 1) * SHORT // SIZE)
            result = result if in_place else result[: SHORT // SIZE]
        send, receive = (MPI.IN_PLACE, result) if in_place else (data, result)
        if method == "Reduce" and RANK:
            send, receive = data, None
        getattr(comm, method)(send, receive, algorithm=word, segment_bytes=segment_bytes)
        if method != "Reduce" or RANK == 0:
            same(result.get()[: len(wanted[part])], wanted[part])
            assert "add" in staged.log or word not in ("ring", "circulant")  # where some ranks reduce for others


@pytest.mark.mpi(min_size=2)
def test_the_users_table_says_where_other_types_are_reduced(comm, staged, monkeypatch, directory):
    path = directory / f"table-{RANK}.json"
    path.write_text('{"schema": 1, "entries": [], "reduce_on_device": {"float64": "8K", "float16": "1G"}}')
    monkeypatch.setenv("MPICOLL_TUNING_FILE", str(path))
    select.table.user.cache_clear()
    for dtype, count, on_device in (("f8", 2048, True), ("f8", 512, False), ("f2", 2048, False), ("f4", 4096, False)):
        data = staged.array(np.ones(count, dtype))
        staged.log.clear()
        comm.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
        assert ("add" in staged.log) is on_device
        same(data, np.full(count, SIZE, dtype))
    monkeypatch.undo()
    select.table.user.cache_clear()


def test_a_repeated_call_is_recognised(comm, staged):
    """By address, in any library's array; the array is not kept alive."""
    data = staged.array(np.ones(COUNT))
    for shown in (data, Foreign(data)):
        comm.Allreduce(MPI.IN_PLACE, shown, algorithm="ring")
        staged.log.clear()
        comm.Allreduce(MPI.IN_PLACE, shown, algorithm="ring")
        assert "asarray" not in staged.log  # nothing was bound
    same(data, np.full(COUNT, 1.0 * SIZE**4))


@pytest.mark.parametrize("mode", ["staged", "direct"], indirect=True)
@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_the_callers_current_stream(comm, xp, mode, word):
    """What it has asked for comes first, and the result is there for it; nothing else is waited for."""
    stream, other = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
    one, busy = xp.array(np.ones(9)), xp.array(np.ones(3))
    xp.cuda.get_current_stream().synchronize()
    with other:
        xp.add(busy, busy, out=busy)  # goes on for long
    with stream:
        data, total = xp.array(np.full(9, float(RANK))), xp.empty(9)
        for _ in range(2):
            xp.add(data, one, out=data)
            comm.Allreduce(data, total, algorithm=word)
            xp.add(total, one, out=total)
        plan = comm.Allreduce_init(data, total, algorithm=word)
        for _ in range(2):
            xp.add(data, one, out=data)
            plan.Start()
            plan.Wait()
            xp.add(total, one, out=total)
        plan.Free()
        xp.add(data, one, out=data)
        comm.Iallreduce(data, total, algorithm=word).Wait()
        xp.add(total, one, out=total)
        same(total, np.full(9, SIZE * 5 + sum(range(SIZE)) + 1.0))
    assert np.isnan(busy.visible()).all()  # no device-wide wait


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_the_stream_that_an_array_names(comm, staged, word):
    stream = staged.cuda.Stream(non_blocking=True)
    with stream:
        one, data = staged.array(np.ones(9)), staged.array(np.zeros(9))
        shown = Foreign(data)
    for _ in range(3):
        with stream:
            staged.add(one, one, out=data)
        comm.Allreduce(MPI.IN_PLACE, shown, algorithm=word)
        same(data.visible(), np.full(9, 2.0 * SIZE))


@pytest.mark.mpi(min_size=2)
def test_pytorchs_current_stream(comm, staged, monkeypatch):
    """A tensor's interface does not tell it."""
    stream = staged.cuda.Stream(non_blocking=True)
    tensor = torch_in_stream(monkeypatch, stream)
    with stream:
        one, data = staged.array(np.ones(9)), staged.array(np.zeros(9))
    shown = tensor(data, stream=None)
    for _ in range(3):
        with stream:
            staged.add(one, one, out=data)
        comm.Allreduce(MPI.IN_PLACE, shown, algorithm="ring")
        same(data.visible(), np.full(9, 2.0 * SIZE))


@pytest.mark.mpi(min_size=2)
def test_start_does_not_wait_for_the_device(comm, staged):
    one, data = staged.array(np.ones(9)), staged.array(np.zeros(9))
    plan = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm="ring")
    staged.add(one, one, out=data)
    staged.log.clear()
    plan.work.pack()
    assert "synchronize" not in staged.log
    plan.Start()
    plan.Wait()
    plan.Free()
    same(data, np.full(9, 2.0 * SIZE))
