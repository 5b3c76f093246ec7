"""Programs that MPI allows and that once gave wrong values, an error on some ranks, or no end."""

import threading
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.calls.arguments import allreduce
from mpicoll.calls.operations import plan_of
from mpicoll.execute.context import Context
from mpicoll.support.turn import FOR_EVER
from mpicoll.transport.channel import CALL, COMPARE, PLAN, WATCH
from tests.support.cases import RANK, SIZE, WORLD, outside_of_mpi, same

pytestmark = pytest.mark.mpi
THREADS = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI does not grant THREAD_MULTIPLE")


@pytest.mark.parametrize("algorithm", [None, "ring", "native"])
@pytest.mark.parametrize("form", ["strided", "derived", "nested"])
@pytest.mark.parametrize("n", [3, 20, 100, 700, 5000, 40_000])
def test_ranks_may_write_their_block_in_different_ways(comm, n, form, algorithm):
    """Native calls whose algorithm depends on the type must see the same type on all ranks."""
    block = np.arange(n, dtype=np.float64) + RANK
    result, counts = np.zeros(n * SIZE), [n] * SIZE
    given = block
    if RANK == SIZE - 1:
        wide = np.repeat(block, 2)
        vector = MPI.DOUBLE.Create_vector(n, 1, 2).Commit()
        nested = MPI.Datatype.Create_struct([1], [0], [vector]).Commit()
        given = {"strided": wide[::2], "derived": [wide, 1, vector], "nested": [wide, 1, nested]}[form]
    comm.Allgatherv(given, [result, counts], algorithm=algorithm)
    same(result, np.concatenate([np.arange(n) + float(rank) for rank in range(SIZE)]))


@pytest.mark.parametrize("algorithm", [None, "native"])
@pytest.mark.parametrize("n", [10, 50, 200, 2000, 20_000, 200_000])
@pytest.mark.parametrize("code", ["b", "F", "e"])
def test_ranks_that_give_nothing_may_say_so_with_any_type(code, n, algorithm):
    comm = mpicoll.Communicator(WORLD.Dup(), timeout=20)
    counts = [0] * (SIZE - 1) + [n]
    given = (np.arange(n) % 100).astype(code) if RANK == SIZE - 1 else np.zeros(0, "bdFQ"[RANK % 4])
    result = np.zeros(n, code)
    for call in (comm.Allgatherv, lambda *buffers, **word: comm.Iallgatherv(*buffers, **word).Wait()):
        call(given, [result, counts], algorithm=algorithm)
        same(result, (np.arange(n) % 100).astype(code))
    comm.Free()


@pytest.mark.parametrize("segment_bytes", [None, 64, 65_536])
@pytest.mark.parametrize("attributes", [{"timeout": 20}, {"deterministic": True}], ids=str)
@pytest.mark.parametrize("method", ["Reduce", "Exscan"])
def test_a_rank_that_recognises_no_call_chooses_as_the_others(method, attributes, segment_bytes):
    """It has a strided array, which is not written to: the call is parsed, and chosen for, each time."""
    comm = mpicoll.Communicator(WORLD.Dup(), **attributes)
    is_odd = RANK == (0 if method == "Exscan" else SIZE - 1)
    for n in (0, 1, 100, 2000):
        result = np.zeros(2 * n)[::2] if is_odd else np.zeros(n)
        for _ in range(4):
            getattr(comm, method)(np.ones(n), result, segment_bytes=segment_bytes)
        expected = {"Reduce": SIZE if RANK == 0 else 0, "Exscan": RANK}[method]
        assert (result == expected).all()
    comm.Free()


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
    """Whatever their numbers and fingerprints are, and however few bits MPI grants."""
    channel, other = Context.of(comm).channel, Context.of(comm.Dup()).channel
    assert channel.wire is other.wire or SIZE == 1
    tags = [{one.tag(kind, number, 7919 * number) for number in range(1, 5000)}
            for one in (channel, other) for kind in (CALL, PLAN, COMPARE, WATCH)]  # fmt: skip
    assert sum(map(len, tags)) == len(set().union(*tags))
    assert min(map(min, tags)) >= 0 and max(map(max, tags)) <= WORLD.Get_attr(MPI.TAG_UB)
    assert channel.tag(CALL, 1, 0) != channel.tag(CALL, 2, 0) != channel.tag(CALL, 2, 1)


@pytest.mark.mpi(min_size=2)
def test_thousands_of_calls_beside_a_living_plan(comm):
    """Numbers of calls come round again; a plan that lives for all that time is not disturbed."""
    planned, x = np.ones(300), np.ones(300)
    plan = comm.Allreduce_init(MPI.IN_PLACE, planned, algorithm="ring")
    for repetition in range(2500):
        x[:] = repetition
        if repetition % 100 == 0:
            planned[:] = 1
            plan.Start()
        comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait()
        assert (x == repetition * SIZE).all()
        if repetition % 100 == 50:
            plan.Wait()
            assert (planned == SIZE).all()
    plan.Free()


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


def test_a_call_ended_in_the_middle_leaves_no_wrong_result_behind(monkeypatch):
    """An interrupt between two rounds: later calls on that communicator are refused, and another one works."""
    monkeypatch.setenv("MPICOLL_ENGINE", "python")  # in C nothing happens between two rounds
    comm, x = mpicoll.Communicator(WORLD.Dup()), np.ones(30_000)
    comm.Allreduce(np.ones(10), np.ones(10), algorithm="ring")  # connects
    WORLD.Barrier()  # a rank that is still in that call hears of the interrupt there
    plan = plan_of(allreduce(comm, np.ones(30_000), x, MPI.SUM), "ring")
    plan.numbered[0] = (0, plan.numbered[0][1]._replace(actions=((interrupted, ()),)))
    with pytest.raises((KeyboardInterrupt, mpicoll.MpicollError)):  # of this rank, or what it is told of the other's
        plan.run()
    for refused in (lambda: comm.Allreduce(MPI.IN_PLACE, np.zeros(1)), lambda: comm.Iallreduce(MPI.IN_PLACE, x),
                    lambda: comm.Bcast(x), lambda: comm.Allreduce_init(MPI.IN_PLACE, x)):  # fmt: skip
        reason = r"(?s)Allreduce \(ring\): round 1 of .*KeyboardInterrupt.*make a new one"
        with pytest.raises(mpicoll.MpicollError, match=reason):
            refused()
    comm.Free()
    fresh = mpicoll.Communicator(WORLD.Dup())
    fresh.Allreduce(MPI.IN_PLACE, y := np.ones(30_000), algorithm="ring")
    assert (y == SIZE).all()
    fresh.Free()


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["array", "list", "strided", "bytes"])
def test_requests_of_mpi_own_their_buffers(comm, form):
    """A temporary as send buffer lives until MPI has sent it."""
    n = 100_000
    y, junk = np.zeros(n), []
    for repetition in range(10):
        x = np.full(n, float(repetition))
        given = {"array": lambda: x * 2, "list": lambda: [x * 2, MPI.DOUBLE], "strided": lambda: np.repeat(x * 2, 2)[::2],
                 "bytes": lambda: [bytearray(x * 2), MPI.DOUBLE]}[form]  # fmt: skip
        request = comm.Iallreduce(given(), y, algorithm="native")
        junk = [np.full(n * factor, -1.0) for factor in (1, 1, 2)]
        request.Wait()
        assert (y == 2 * SIZE * repetition).all()
        plan = comm.Allreduce_init(given(), y, algorithm="native")
        junk += [np.full(n * factor, -1.0) for factor in (1, 1, 2)]
        plan.Start()
        plan.Wait()
        plan.Free()
        assert (y == 2 * SIZE * repetition).all()


def test_a_private_communicator_is_made_before_anything_is_under_way():
    """Open MPI: duplicating beside non-blocking collectives ends in errors of theirs, and then in a hang."""
    comm = mpicoll.Communicator(WORLD.Dup())
    large, small = np.ones(5 << 20), [np.full(4, float(number)) for number in range(5)]
    requests = [comm.Iallreduce(MPI.IN_PLACE, large)]
    requests += [comm.Iallreduce(MPI.IN_PLACE, one) for one in small]
    MPI.Request.Waitall(requests)
    assert (large == SIZE).all() and [one[0] for one in small] == [SIZE * number for number in range(5)]
    comm.Free()


def test_duplicates_and_parts_cost_no_second_context():
    """MPI grants some 2,000: each communicator takes one, as with MPI alone."""
    comm = mpicoll.Communicator(WORLD.Dup())
    wire = Context.of(comm).channel.wire
    made = [comm.Dup(), comm.Split(0, -RANK), comm.Split(RANK), comm.Create(comm.Get_group())]
    assert all(Context.of(one).channel.wire is wire for one in made)
    assert len({Context.of(one).channel.tag(CALL, 0) for one in made}) == len(made)
    for one in made:  # each sees only its own messages
        x = np.full(3, 1.0 + RANK)
        one.Allreduce(MPI.IN_PLACE, x, algorithm="recursive_doubling")
        assert x[0] == (1.0 + RANK if one.Get_size() == 1 else SIZE * (SIZE + 1) / 2)
    wires = {id(Context.of(one).channel.wire) for one in [comm.Dup() for _ in range(70)]}
    assert len(wires) < 70 / 8  # the numbers of a wire come to their end
    if SIZE > 1:  # a part has not all ranks of the wire: what is made of it gets another
        assert Context.of(made[2].Dup()).channel.wire is not wire
    comm.Free()
    made[0].Allreduce(MPI.IN_PLACE, np.ones(3), algorithm="ring")  # the wire outlives the communicator it was made for
    for one in made:
        one.Free()


@pytest.mark.skipif(RANK > 0, reason="rank 0 starts processes of their own")
def test_without_threads_a_plan_is_mpis_own():
    """A schedule that was started would not move in a Barrier or a call on another communicator."""
    program = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
import mpicoll, numpy
comm = mpicoll.Communicator(MPI.COMM_WORLD)
plan = comm.Allreduce_init(MPI.IN_PLACE, x := numpy.ones(100_000))
plan.Start(); MPI.COMM_WORLD.Barrier(); plan.Wait()
print(type(plan).__name__, x[0])
comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring")
"""
    done = outside_of_mpi(program)
    assert done.stdout == "OwningPrequest 1.0\n" and "MPI does not grant THREAD_MULTIPLE" in done.stderr, done


@THREADS
@pytest.mark.mpi(min_size=2)
def test_a_finalizer_that_waits_in_the_middle_of_looking():
    """The thread that tests a request has the turn to advance calls. It must not wait for the other one, which wants it."""
    comm, alone = mpicoll.Communicator(WORLD.Dup()), mpicoll.Communicator(MPI.COMM_SELF.Dup())
    looking = Context.of(comm).channel.looking
    results = []

    def finalizer():
        for _ in range(20):
            one = np.ones(3000)
            alone.Iallreduce(MPI.IN_PLACE, one, algorithm="ring").Wait()
            results.append(one)
        WORLD.send(None, (RANK + 1) % SIZE)

    x = np.ones(3000)
    request = comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring") if RANK == 0 else None
    thread = threading.Thread(target=looking.take, args=(finalizer,), kwargs={"patience": FOR_EVER})
    thread.start()
    if request is None:  # late
        WORLD.recv()
        request = comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring")
    while not request.Test():
        pass
    thread.join()
    if RANK == 0:
        WORLD.recv()
    assert (x == SIZE).all() and len(results) == 20
    comm.Free()
    alone.Free()
