"""`algorithm="nccl"` where NCCL cannot serve: one error on every rank before it is called; and what fails later."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.execute import Context
from tests.support.cases import RANK, SIZE, WORLD, everywhere, same

pytestmark = pytest.mark.mpi


def refused(call, problem, error=mpicoll.ArgumentError):
    with pytest.raises(error, match=problem) as raised:
        call()
    return str(raised.value)


def test_what_nccl_does_not_have(comm, xp, mode, nccl):
    mine = MPI.Op.Create(lambda a, b, _: None, True)
    ones = {dtype: xp.array(np.ones(SIZE), dtype=dtype) for dtype in ("f8", "c16", "i2", "i8", "?")}
    for dtype, op, problem in (
        ("c16", MPI.SUM, "NCCL reduces no complex128, it reduces int8, "),
        ("i2", MPI.SUM, "NCCL reduces no int16"),
        ("?", MPI.LOR, "NCCL has no LOR, it has SUM, PROD, MAX, MIN"),
        ("i8", MPI.BAND, "NCCL has no BAND"),
        ("f8", mine, "NCCL takes no user-defined op"),
    ):
        refused(lambda: comm.Allreduce(MPI.IN_PLACE, ones[dtype], op, algorithm="nccl"), problem)
        refused(lambda: comm.Iallreduce(MPI.IN_PLACE, ones[dtype], op, algorithm="nccl"), problem)
        refused(lambda: comm.Allreduce_init(MPI.IN_PLACE, ones[dtype], op, algorithm="nccl"), problem)
        refused(lambda: comm.explain("allreduce", ones[dtype], op=op, algorithm="nccl"), problem)
    mine.Free()
    assert not nccl.log


def test_other_collectives(comm, xp, nccl):
    data = xp.array(np.ones(SIZE))
    problem = "of MPI's collectives it has allreduce, reduce_scatter, allgather, bcast, reduce"
    refused(lambda: comm.Gather(data, xp.empty(SIZE * SIZE), algorithm="nccl"), problem)
    refused(lambda: comm.Scatter(data, xp.empty(1), algorithm="nccl"), problem)


@pytest.mark.mpi(min_size=2)
def test_blocks_that_differ(comm, xp, nccl):
    counts = [rank + 1 for rank in range(SIZE)]
    whole = xp.array(np.ones(sum(counts)))
    refused(lambda: comm.Allgatherv(MPI.IN_PLACE, [whole, counts], algorithm="nccl"), "equal blocks, these have 8, 16")
    problem = "equal blocks, these have 8, 16"
    refused(lambda: comm.Reduce_scatter(whole, xp.empty(RANK + 1), counts, algorithm="nccl"), problem)


def test_host_memory(comm, xp, mode, nccl):
    problem = f"NCCL takes device memory, and a buffer of rank {RANK} is in host memory: pass CuPy arrays"
    host, device = np.ones(3), xp.array(np.ones(3))
    refused(lambda: comm.Allreduce(MPI.IN_PLACE, host, algorithm="nccl"), problem)
    refused(lambda: comm.Bcast(host, algorithm="nccl"), problem)
    refused(lambda: comm.explain("allreduce", host, algorithm="nccl"), problem)
    either = mpicoll.ArgumentError, mpicoll.BufferError
    refused(lambda: comm.Allreduce(host, device, algorithm="nccl"), "host memory", either)
    assert not nccl.log


@pytest.mark.mpi(min_size=2)
def test_host_memory_on_one_rank(xp, nccl):
    """All ranks learn of it, as of any other call that is not the same."""
    comm, data = mpicoll.Communicator(WORLD.Dup()), np.ones(3) if RANK == 1 else xp.array(np.ones(3))
    text = refused(lambda: comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl"), "not make the same call",
                   mpicoll.CollectiveMismatch)  # fmt: skip
    assert text.count("in device memory") == 1
    comm.Free()


def test_parts_that_are_described(comm, xp, mode, nccl):
    data = xp.array(np.arange(10.0))
    refused(lambda: comm.Allreduce(MPI.IN_PLACE, [data, (4, 3), MPI.DOUBLE], algorithm="nccl"), "pass a slice")
    comm.Allreduce(MPI.IN_PLACE, [data, 10, MPI.DOUBLE], algorithm="nccl")
    same(data, SIZE * np.arange(10.0))


def reduces(comm, xp):
    data = xp.array(np.ones(3))
    return (
        lambda: comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl"),
        lambda: comm.Iallreduce(MPI.IN_PLACE, data, algorithm="nccl"),
        lambda: comm.Allreduce_init(MPI.IN_PLACE, data, algorithm="nccl"),
    )


@pytest.mark.mpi(min_size=2)
def test_two_ranks_on_one_gpu(comm, xp, nccl, monkeypatch):
    monkeypatch.setattr(nccl, "gpu", lambda device: f"{max(RANK - 1, 0)}.{device}")
    for call in reduces(comm, xp):
        text = refused(call, "ranks 0, 1 are on one GPU, which NCCL 2.27.5 refuses: start one rank per GPU")
        everywhere(text)
    assert not nccl.log and "set NCCL_MULTI_RANK" not in text
    refused(lambda: comm.explain("allreduce", xp.array(np.ones(3)), algorithm="nccl"), "on one GPU")
    comm.Allreduce(MPI.IN_PLACE, xp.array(np.ones(3)))  # the communicator is as good as it was


@pytest.mark.mpi(min_size=2)
def test_an_nccl_that_lets_ranks_share(xp, nccl, monkeypatch):
    monkeypatch.setattr(nccl, "gpu", lambda device: "0")
    monkeypatch.setattr(nccl, "version", 23003)
    comm = mpicoll.Communicator(WORLD.Dup())
    refused(reduces(comm, xp)[0], "one GPU, which NCCL 2.30.3 refuses.*set NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks")
    comm.Free()
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    comm = mpicoll.Communicator(WORLD.Dup())
    reduces(comm, xp)[0]()
    comm.Free()


def test_nccl_missing_on_one_rank(comm, xp, nccl, monkeypatch):
    if RANK == SIZE - 1:
        monkeypatch.setattr(nccl, "available", False)
        refused(lambda: comm.explain("allreduce", xp.array(np.ones(3)), algorithm="nccl"), "CuPy finds no NCCL")
    for call in reduces(comm, xp):
        everywhere(refused(call, f"rank {SIZE - 1}: CuPy finds no NCCL: install nvidia-nccl-cu12 or nvidia-nccl-cu13"))
    assert not nccl.log


def test_cupy_without_nccl(comm, xp):
    for call in reduces(comm, xp):
        refused(call, "rank 0: CuPy finds no NCCL")


@pytest.mark.mpi(min_size=2)
def test_versions_that_differ(comm, xp, nccl, monkeypatch):
    monkeypatch.setattr(nccl, "version", 22705 + (RANK == 0))
    everywhere(refused(reduces(comm, xp)[0], r"different versions of NCCL \(rank 0: 2.27.6; ranks? 1.*: 2.27.5\)"))


def test_a_gpu_that_does_not_answer(comm, xp, nccl, monkeypatch):
    def gone(device):
        raise RuntimeError("cudaErrorDevicesUnavailable")

    if RANK == SIZE - 1:
        monkeypatch.setattr(nccl, "gpu", gone)
    everywhere(refused(reduces(comm, xp)[0], f"rank {SIZE - 1}: cudaErrorDevicesUnavailable"))
    assert not nccl.log


def test_a_communicator_that_cannot_be_made(comm, xp, nccl, monkeypatch):
    monkeypatch.setattr(nccl, "failing", "init")
    everywhere(refused(reduces(comm, xp)[0], "rank 0: NCCL_ERROR_SYSTEM_ERROR"))
    comm.Allreduce(MPI.IN_PLACE, np.ones(3))


# ---- errors later on


def broken_alike(nccl, call, comm, problem, error=mpicoll.MpicollError):
    refused(call, problem, error)
    refused(lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(3)), "(?s)cannot be used any more", mpicoll.MpicollError)
    assert nccl.log[-1] == "abort"


def test_a_call_that_fails(xp, nccl, monkeypatch):
    comm = mpicoll.Communicator(WORLD.Dup())
    reduces(comm, xp)[0]()
    WORLD.Barrier()  # a rank that is still in the first call would hear of the second
    monkeypatch.setattr(nccl, "failing", "allReduce")
    problem = r"rank \d+: NCCL failed: NCCL_ERROR_INVALID_USAGE.*NCCL_DEBUG=WARN"  # whichever rank failed first
    broken_alike(nccl, reduces(comm, xp)[0], comm, problem)
    comm.Free()


def test_a_communicator_that_another_rank_gives_up_before_the_call_begins(comm, xp, nccl):
    reduces(comm, xp)[0]()
    (made,) = Context.of(comm).nccl.values()
    Context.of(comm).in_disorder(mpicoll.MpicollError("another rank's reason"), tell=False)
    with pytest.raises(mpicoll.MpicollError, match="another rank's reason"):
        made.launch(print, list)


@pytest.mark.parametrize("form", [0, 1, 2])
def test_an_error_that_nccl_finds_later(xp, nccl, monkeypatch, form):
    comm = mpicoll.Communicator(WORLD.Dup())
    reduces(comm, xp)[0]()
    monkeypatch.setattr(nccl, "broken", "NCCL_ERROR_REMOTE_ERROR: a peer is gone")
    call = reduces(comm, xp)[form]

    def served():
        made = call()
        if form == 2:
            made.Start()
        if made is not None:
            made.Wait()

    broken_alike(nccl, served, comm, "NCCL failed: NCCL_ERROR_REMOTE_ERROR")
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", [0, 1, 2])
def test_a_rank_that_does_not_come(xp, nccl, form):
    """The time is up: NCCL's kernels are ended, and the error says what waits."""
    comm = mpicoll.Communicator(WORLD.Dup(), timeout=100)
    data = xp.array(np.ones(3))
    comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl")
    comm.Iallreduce(MPI.IN_PLACE, data, algorithm="nccl").Wait()
    plan = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm="nccl")
    mpicoll.Communicator(comm, timeout=0.5)  # from here on: a busy machine is slow to start all ranks

    def served():
        if form == 0:
            comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl")
        elif form == 1:
            comm.Iallreduce(MPI.IN_PLACE, data, algorithm="nccl").Wait()
        else:
            plan.Start()
            plan.Wait()

    if RANK == 0:
        text = refused(served, "no progress for", mpicoll.CollectiveTimeout)
        assert nccl.log[-1] == "abort" and ("NCCL's Allreduce of 24 bytes" in text or form)
    WORLD.Barrier()
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", [0, 1, 2])
def test_a_rank_that_does_not_come_the_first_time(xp, nccl, form):
    comm = mpicoll.Communicator(WORLD.Dup(), timeout=0.5, check="off")
    if RANK == 0:
        refused(reduces(comm, xp)[form], "(?s)no progress for", mpicoll.CollectiveTimeout)
    WORLD.Barrier()
    assert not nccl.log
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", [0, 1, 2])
def test_calls_that_differ(xp, nccl, form):
    comm = mpicoll.Communicator(WORLD.Dup())
    if form != 2:  # the first one of all is compared before NCCL is asked
        reduces(comm, xp)[0]()
    data, word = xp.array(np.ones(5)), "nccl" if RANK else "ring"

    def call():
        if form == 0:
            comm.Allreduce(MPI.IN_PLACE, data, algorithm=word)
        else:
            comm.Iallreduce(MPI.IN_PLACE, data, algorithm=word).Wait()

    text = refused(call, "not make the same call", mpicoll.CollectiveMismatch)
    assert "algorithm='nccl'" in text and "algorithm='ring'" in text
    WORLD.Barrier()
    comm.Free()
