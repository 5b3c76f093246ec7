"""Programs that MPI allows and that once gave wrong values, an error on some ranks, or no end."""

import threading
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.calls.arguments import allreduce
from mpicoll.calls.binding import plan_of
from mpicoll.execute.context import Context
from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = pytest.mark.mpi
THREADS = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI does not grant THREAD_MULTIPLE")


@pytest.mark.parametrize("algorithm", [None, "ring", "native"])
def test_ranks_may_write_their_block_in_different_ways(comm, algorithm):
    """Native calls whose algorithm depends on the type must see the same type on all ranks."""
    n = 3000
    block = np.arange(n, dtype=np.float64) + RANK
    strided = np.repeat(block, 2)[::2]
    result = np.zeros(n * SIZE)
    counts = [n] * SIZE
    comm.Allgatherv(strided if RANK == SIZE - 1 else block, [result, counts], algorithm=algorithm)
    same(result, np.concatenate([np.arange(n) + float(rank) for rank in range(SIZE)]))


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "pairwise"])
@pytest.mark.parametrize("begin", [False, True])
def test_arithmetic_is_mpis_whatever_numpy_was_told(comm, algorithm, begin):
    x = np.full(5000, 3e38, np.float32)
    x[0] = np.inf if RANK else -np.inf
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        if begin:
            comm.Iallreduce(MPI.IN_PLACE, x, algorithm=algorithm).Wait()
        else:
            comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
        assert np.geterr()["over"] == "raise"
    assert SIZE == 1 or (np.isnan(x[0]) and np.isinf(x[1:]).all())


def test_no_two_living_calls_share_a_tag(comm):
    """Persistent plans live long; thousands of non-blocking calls must not come back to their tags."""
    context = Context.of(comm)
    plans = {context.next_plan_tag() for _ in range(100)}
    calls = [context.next_call_tag() for _ in range(100_000)]
    assert len(plans) == 100 and len(set(calls)) == len(calls)
    assert plans.isdisjoint(calls) and 0 not in plans.union(calls)
    assert max(*plans, *calls) <= WORLD.Get_attr(MPI.TAG_UB)


@THREADS
def test_threads_may_pack_derived_types_at_the_same_time():
    comms = [mpicoll.Communicator(WORLD.Dup()) for _ in range(2)]
    wrong = []

    def work(number):
        vector = MPI.DOUBLE.Create_vector(500, 1, 2).Commit()
        for repetition in range(40):
            x = np.full(1000, float(number + 2 * repetition))
            result = np.zeros(500 * SIZE)
            comms[number].Allgather([x, 1, vector], result, algorithm="ring")
            wrong.append(int((result != x[0]).sum()))
        vector.Free()

    together(work)
    assert not any(wrong)
    for comm in comms:
        comm.Free()


@THREADS
@pytest.mark.mpi(min_size=2)
def test_a_thread_whose_call_has_ended_is_let_go():
    """Rank 0's second thread waits for what rank 1 starts only after rank 0's first thread has gone on."""
    comms = [mpicoll.Communicator(WORLD.Dup()) for _ in range(2)]
    x, y = np.ones(40_000), np.ones(40_000)
    late = comms[1].Allreduce_init(MPI.IN_PLACE, y, algorithm="ring")
    released = threading.Event()

    def work(number):
        if number == 1:
            if RANK == 1:
                released.wait()  # the first thread has ended everywhere
            late.Start()
            late.Wait()
        else:
            comms[0].Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait()
            if RANK == 0:
                WORLD.send("go on", 1)
            elif RANK == 1:
                WORLD.recv(source=0)
                released.set()

    together(work)
    assert x[0] == y[0] == SIZE
    late.Free()
    for comm in comms:
        comm.Free()


def together(work):
    """Run work(0) and work(1) in two threads, to the end of both."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread never came back"


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16])
@pytest.mark.parametrize("algorithm", [None, "binomial"])
def test_a_root_may_be_any_integer(comm, kind, algorithm):
    x = np.full(3, float(RANK))
    comm.Bcast(x, root=kind(SIZE - 1), algorithm=algorithm)
    same(x, np.full(3, SIZE - 1.0))
    total = np.zeros(3) if RANK == SIZE - 1 else None
    comm.Reduce(np.ones(3), total, root=kind(SIZE - 1), algorithm=algorithm)
    assert total is None or (total == SIZE).all()
    with pytest.raises(mpicoll.ArgumentError, match="root"):
        comm.Bcast(x, root="0")


def test_bytes_called_char_are_not_strings(comm):
    """NumPy's S1 "adds" by joining."""
    x = np.full(1 << 20, RANK + 1, np.int8)
    expected = x.copy()
    try:
        MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, [expected, MPI.CHAR])
    except MPI.Exception:
        with pytest.raises(mpicoll.BufferError, match="MPI_CHAR"):
            comm.Allreduce(MPI.IN_PLACE, [x, MPI.CHAR])
        return
    comm.Allreduce(MPI.IN_PLACE, [x, MPI.CHAR])
    same(x, expected)


def test_duplicates_probe_for_themselves(comm):
    """What a probe found on one duplicate is not what another knows: ranks may use them in different order."""
    one, other = comm.Dup(), comm.Dup()
    Context.of(one).measured["allreduce"] = "found on one"
    assert "allreduce" not in Context.of(other).measured
    # what is known when a duplicate is made is known on all ranks
    assert Context.of(one.Dup()).measured == {"allreduce": "found on one"}


def test_a_call_ended_in_the_middle_leaves_no_wrong_result_behind():
    """An interrupt between two rounds: later calls on that communicator are refused, and another one works."""
    comm, x = mpicoll.Communicator(WORLD.Dup()), np.ones(30_000)
    comm.Allreduce(np.ones(10), np.ones(10), algorithm="ring")  # connects
    plan = plan_of(allreduce(comm, np.ones(30_000), x, MPI.SUM), "ring")
    plan.numbered[0] = (0, plan.numbered[0][1]._replace(actions=((interrupted, ()),)))
    with pytest.raises(KeyboardInterrupt):
        plan.run()
    for refused in (lambda: comm.Allreduce(MPI.IN_PLACE, np.zeros(1)), lambda: comm.Iallreduce(MPI.IN_PLACE, x),
                    lambda: comm.Bcast(x), lambda: comm.Allreduce_init(MPI.IN_PLACE, x)):  # fmt: skip
        with pytest.raises(mpicoll.MpicollError, match=r"Allreduce \(ring\): round 1 of .*KeyboardInterrupt.*make a new one"):
            refused()
    comm.Free()
    fresh = mpicoll.Communicator(WORLD.Dup())
    fresh.Allreduce(MPI.IN_PLACE, y := np.ones(30_000), algorithm="ring")
    assert (y == SIZE).all()
    fresh.Free()


def interrupted():
    raise KeyboardInterrupt
