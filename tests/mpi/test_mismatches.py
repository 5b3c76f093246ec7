"""Ranks that do not make the same call: all of them raise the same error, which names every group of ranks and its call."""

import re
from contextlib import suppress

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.execute import Context, agreement
from mpicoll.support import settings
from mpicoll.transport import CALL
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.interpreters("python", "c")]
SIZES = [1000, 200_000]  # elements: 8 KB and 1.6 MB
HERE, LAST = "test_mismatches.py:", SIZE - 1


def allreduce(comm, x, **more):
    comm.Allreduce(MPI.IN_PLACE, x, **more)


def blocks(comm, x, counts, **more):
    """Allgatherv in place."""
    comm.Allgatherv(MPI.IN_PLACE, [x, counts], **more)


def even(x):
    return [x.size // SIZE] * SIZE


def uneven(x):
    return [x.size // SIZE - 1] + [x.size // SIZE] * (SIZE - 1)


#: what the last rank calls, and what all others call
KINDS = {
    "other collective": (lambda c, x, w: c.Bcast(x, **w), lambda c, x, w: allreduce(c, x, **w)),
    "count": (lambda c, x, w: allreduce(c, x[: x.size // 2], **w), lambda c, x, w: allreduce(c, x, **w)),
    "size of type": (lambda c, x, w: allreduce(c, x.view("f4"), **w), lambda c, x, w: allreduce(c, x, **w)),
    "float against int": (lambda c, x, w: allreduce(c, x.view("i8"), **w), lambda c, x, w: allreduce(c, x, **w)),
    "moved float against int": (lambda c, x, w: c.Bcast(x.view("i8"), **w), lambda c, x, w: c.Bcast(x, **w)),
    "op": (lambda c, x, w: allreduce(c, x, op=MPI.MAX, **w), lambda c, x, w: allreduce(c, x, **w)),
    "root": (lambda c, x, w: c.Bcast(x, root=1, **w), lambda c, x, w: c.Bcast(x, root=0, **w)),
    "one left out": (lambda c, x, w: c.Bcast(x, **w), lambda c, x, w: (allreduce(c, x, **w), c.Bcast(x, **w))),
    "non-blocking": (lambda c, x, w: c.Ibcast(x, **w).Wait(), lambda c, x, w: c.Bcast(x, **w)),
    "persistent": (lambda c, x, w: c.Bcast_init(x, **w), lambda c, x, w: c.Bcast(x, **w)),
    "alltoall of other blocks": (lambda c, x, w: c.Alltoall(MPI.IN_PLACE, x[: x.size // 2], **w),
                                 lambda c, x, w: c.Alltoall(MPI.IN_PLACE, x, **w)),
    "inclusive against exclusive": (lambda c, x, w: c.Scan(MPI.IN_PLACE, x, **w),
                                    lambda c, x, w: c.Exscan(MPI.IN_PLACE, x, **w)),
    "barrier": (lambda c, x, w: c.Barrier(**w), lambda c, x, w: allreduce(c, x, **w)),
    "counts": (lambda c, x, w: blocks(c, x, uneven(x), **w), lambda c, x, w: blocks(c, x, even(x), **w)),
}


SERVED_BY = {"other collective": "pipeline", "one left out": "pipeline", "moved float against int": "binomial",
             "root": "binomial", "non-blocking": "binomial", "persistent": "binomial",
             "alltoall of other blocks": "pairwise", "inclusive against exclusive": "pipeline",
             "barrier": "tree"}  # fmt: skip


def raised_alike(comm, call):
    """The text of the CollectiveMismatch that all ranks raise, the same; later calls are refused."""
    with pytest.raises(mpicoll.CollectiveMismatch) as error:
        call()
    text = str(error.value)
    assert WORLD.allgather(text) == [text] * SIZE
    with pytest.raises(mpicoll.MpicollError, match="(?s)cannot be used any more.*make a new one"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    comm.Free()
    return text


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("served", ["schedule", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_raise_the_same(kind, served, count, interpreter):
    """Any three of the interpreter, the size, what serves the call and `check` occur together in every combination."""
    is_even = sum((served == "native", count == SIZES[0], interpreter == settings.C)) % 2 == 0
    check = "always" if is_even else "first"
    comm = mpicoll.Communicator(WORLD.Dup(), check=check)
    comm.Allreduce(MPI.IN_PLACE, np.ones(3))  # a call that is right comes first
    of_the_last, of_the_others = KINDS[kind]
    word = "native" if served == "native" else SERVED_BY.get(kind, "ring")
    options, x = {"algorithm": word}, np.ones(count - count % (2 * SIZE))
    text = raised_alike(comm, lambda: (of_the_last if RANK == LAST else of_the_others)(comm, x, options))
    assert text.count(HERE) == 2 and f"rank {LAST}: " in text, text


ASKED = {
    "native against schedule": ({"algorithm": "native"}, {"algorithm": "ring"}),
    "other algorithm": ({"algorithm": "circulant"}, {"algorithm": "ring"}),
    "other segment_bytes": ({"algorithm": "ring", "segment_bytes": 4096}, {"algorithm": "ring", "segment_bytes": 8192}),
}


@pytest.mark.parametrize("check", ["always", "first"])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", ASKED)
def test_ranks_that_ask_for_different_algorithms(kind, count, check):
    comm = mpicoll.Communicator(WORLD.Dup(), check=check)
    options = ASKED[kind][RANK != LAST]
    text = raised_alike(comm, lambda: comm.Allreduce(np.ones(count), np.ones(count), **options))
    assert all(str(value) in text for value in ASKED[kind][0].values())


@pytest.mark.parametrize("method", ["Gatherv", "Scatterv"])
@pytest.mark.parametrize("algorithm", ["linear", "binomial", "native"])
@pytest.mark.parametrize("count", SIZES)
def test_a_block_of_other_size_than_the_root_says(method, algorithm, count):
    comm = mpicoll.Communicator(WORLD.Dup())
    mine = np.ones(count - (RANK == LAST))
    whole = [np.zeros(count * SIZE), [count] * SIZE] if RANK == 0 else None
    given = (mine, whole) if method == "Gatherv" else (whole, mine)
    text = raised_alike(comm, lambda: getattr(comm, method)(*given, algorithm=algorithm))
    assert f"rank {LAST} has a block of {8 * count - 8} bytes, the root (0) says {8 * count}" in text


def test_refused_arguments_are_news_to_the_others():
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    x, y = np.ones(10), np.ones(10 if RANK else 9)
    text = raised_alike(comm, lambda: comm.Allreduce(x, y))
    assert "rank 0: a call whose arguments were refused" in text and "expected 80" in text


def test_arguments_refused_on_all_ranks_are_no_mismatch():
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    with pytest.raises(mpicoll.BufferError):
        comm.Allreduce(np.ones(10), np.ones(9))
    comm.Allreduce(MPI.IN_PLACE, x := np.ones(2))
    assert (x == SIZE).all()
    comm.Free()


def test_what_mpi_allows_is_no_mismatch():
    """Other types of as many bytes, other memory, other places in the program, one array seen before and one not."""
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    column = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
    data, kept = np.zeros(8), np.zeros(4)
    for _ in range(3):
        x = np.full(4, 7.0) if RANK == 0 else np.zeros(4)
        comm.Bcast([data, 1, column] if RANK == 1 else bytearray(x) if RANK == 2 else x)
        assert RANK > 1 or (data[::2] if RANK else x).tolist() == [7] * 4
        kept[:] = RANK
        if RANK:
            comm.Allreduce(MPI.IN_PLACE, kept, algorithm="ring")
        else:
            comm.Allreduce(MPI.IN_PLACE, kept := kept.copy(), algorithm="ring")
        assert (kept == sum(range(SIZE))).all()
    column.Free()
    comm.Free()


@pytest.mark.parametrize("mode", ["off", "first"])
def test_off_and_first_send_no_more_than_once(mode):
    """A call that was met before is not compared again, on whatever memory: nothing but its own messages is sent."""
    comm = mpicoll.Communicator(WORLD.Dup(), check=mode)
    numbers = []
    for _ in range(3):
        comm.Allreduce(MPI.IN_PLACE, np.ones(1000), algorithm="ring")
        numbers.append(Context.of(comm).next_call())
    assert np.diff(numbers).tolist() == [2, 2]
    comm.Free()


def test_a_mode_that_there_is_not():
    with pytest.raises(mpicoll.ArgumentError, match="check=sometimes: expected off, first or always"):
        mpicoll.Communicator(WORLD.Dup(), check="sometimes")
    with pytest.raises(mpicoll.ArgumentError, match="ranks disagree about check"):
        mpicoll.Communicator(WORLD.Dup(), check="first" if RANK else "always")


@pytest.mark.parametrize("count", SIZES)
def test_messages_of_one_call_are_not_taken_for_those_of_another(count):
    """The last rank leaves out a broadcast that was met before, so nothing is compared: the next one does not get its data."""
    comm = mpicoll.Communicator(WORLD.Dup(), check="first", timeout=100)
    for _ in range(3):
        comm.Ibcast(np.zeros(count), algorithm="linear").Wait()
        comm.Iallreduce(MPI.IN_PLACE, np.zeros(count), algorithm="ring").Wait()
    mpicoll.Communicator(comm, timeout=0.4)  # from here on: a busy machine is slow to start all ranks
    lost, received, total = np.zeros(count), np.full(count, 7.0 if RANK == 0 else -1.0), np.ones(count)
    calls = [
        lambda: comm.Iallreduce(MPI.IN_PLACE, total, algorithm="ring"),
        lambda: comm.Ibcast(received, algorithm="linear"),
    ]
    if RANK != LAST:
        calls.insert(0, lambda: comm.Ibcast(lost, algorithm="linear"))
    requests = []
    for begin in calls:
        with suppress(mpicoll.MpicollError):  # it may be found before all have begun
            requests.append(begin())
    ended = [error_of(request.Wait) is None for request in requests]
    ended += [False] * (len(calls) - len(ended))
    assert RANK != LAST or (not any(ended) and (received == -1).all())
    assert not all(ended) and ((total == 1).all() or not ended[-2])
    with pytest.raises(mpicoll.MpicollError, match="cannot be used any more"):
        comm.Bcast(total)
    WORLD.Barrier()


def error_of(call):
    """The error of mpicoll's own that a call raises, or None."""
    try:
        call()
    except mpicoll.MpicollError as error:
        return error
    return None


def test_a_message_of_the_next_call_is_not_taken_for_one_of_long_ago():
    """Tags have a few bits of a number; numbers that are no calls, as of comparisons, leave older calls in their places."""
    channel = mpicoll.Communicator(MPI.COMM_WORLD.Dup())._context.channel
    numbers = channel._mask + 1
    kept = 5
    latest = kept + numbers - 1
    for number in range(1, latest + 1):
        if number != kept + numbers // 2:
            channel.begin(number, channel.tag(CALL, number, 7))
    assert channel.begun.at(kept)[0] == kept
    assert not channel.is_of_another_call(channel.tag(CALL, kept + numbers, 9))
    assert not channel.is_of_another_call(channel.tag(CALL, kept + numbers // 2, 9))
    assert not channel.is_of_another_call(channel.tag(CALL, latest, 7))
    assert channel.is_of_another_call(channel.tag(CALL, latest, 9))
    assert channel.is_of_another_call(channel.tag(CALL, latest - 100, 9))


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize("timeout", [100, None])
def test_the_first_call_that_differs_is_named(monkeypatch, left_out, timeout):
    """A call that MPI serves and that was met before may be left out unnoticed; a later one, in another place, is compared."""
    monkeypatch.setenv("MPICOLL_ENGINE", "python")  # in C it would be a schedule
    comm = mpicoll.Communicator(WORLD.Dup(), timeout=timeout)
    few, x = np.ones(1), np.ones(1000)
    for _ in range(2):
        comm.Bcast(few)
    if RANK != LAST or not left_out:
        comm.Bcast(few)
    if left_out and RANK == LAST:
        MPI.Intracomm.Bcast(comm, few)  # not counted: MPI may use the communicator's number again, and its messages
    if left_out:
        text = raised_alike(comm, lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring"))
        assert "did not make the same calls before this one" in text, text
        others = r"  ranks? 0.*: Bcast of 8 bytes, root 0(, a repeated call.*| at .*)\n"
        here = rf"  rank {LAST}: Allreduce of 8000 bytes, SUM, \S+ at .*{HERE}"
        assert re.search(f"before that:\n{others}{here}", text), text
    else:
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        text = raised_alike(comm, lambda: comm.Bcast(x) if RANK == LAST else allreduce(comm, x[:500]))
        assert "before that" not in text, text


def test_other_spellings_are_no_earlier_difference():
    """Small calls that one rank has to look at, and another has not; many more of them than are remembered."""
    comm, few, x = mpicoll.Communicator(WORLD.Dup()), np.ones(1), np.ones(1000)
    for number in range(3000):
        last = RANK == LAST
        comm.Allreduce(MPI.IN_PLACE, [few, MPI.DOUBLE] if last and number % 2 else few, MPI.MAX)
        comm.Bcast(few[::-1] if last and number % 3 else few)
        comm.Ibcast([few, 1, MPI.DOUBLE] if last and number % 5 else few).Wait()
        comm.Allgather(few.copy() if last else few, np.empty(SIZE))
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    text = raised_alike(comm, lambda: comm.Bcast(x) if RANK == LAST else allreduce(comm, x[:500]))
    assert "came before that" not in text, text


def test_texts_that_are_too_many_are_counted(monkeypatch):
    """Of ranks that all say something else some are told, so that what goes around does not grow as their number squared."""
    monkeypatch.setattr(agreement, "_MOST_TEXTS", 1)
    comm = mpicoll.Communicator(WORLD.Dup())
    text = raised_alike(comm, lambda: allreduce(comm, np.ones(1000 + RANK)))
    assert re.search(r"rank 0: Allreduce of 8000 bytes", text)
    assert f"{'ranks' if SIZE > 2 else 'rank'} 1" in text and agreement.UNTOLD in text


@pytest.mark.mpi(min_size=2)
def test_a_plan_that_is_refused_is_not_under_way(comm):
    """Reports name what is."""
    with pytest.raises(mpicoll.CollectiveMismatch):
        comm.Allreduce_init(np.ones(8 + RANK), np.empty(8 + RANK))
    assert not comm._context.recorder.under_way


def test_the_error_that_came_first_is_told(monkeypatch):
    """Its thread is about to tell the others when another thread sees it, and ends its own call."""
    comm = mpicoll.Communicator(WORLD.Dup())
    context, channel = Context.of(comm), Context.of(comm).channel
    found = mpicoll.CollectiveMismatch("ranks do not make the same calls")

    def interrupted(text):
        monkeypatch.undo()
        context.in_disorder(context.reason("a call", context.queue.error))
        channel.give_notice(text)

    if RANK == 0:
        monkeypatch.setattr(channel, "give_notice", interrupted)
        context.in_disorder(found)
    else:
        with pytest.raises(mpicoll.MpicollError, match=str(found)):
            comm.Allreduce(np.ones(1000), np.empty(1000), algorithm="ring")
    assert isinstance(context.queue.error, mpicoll.CollectiveMismatch)


def test_a_communicator_that_another_rank_gave_up_meanwhile_can_be_freed():
    """It compares its calls first, which the other rank no longer does."""
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    comm.Allreduce(np.ones(10), np.empty(10), algorithm="ring")
    WORLD.Barrier()
    if RANK == LAST:
        Context.of(comm).in_disorder(mpicoll.CollectiveTimeout("no progress"))
    comm.Free()
    assert comm == MPI.COMM_NULL


# Inside a node each message of a reduction has a hash of all calls: check="always" adds nothing to it.


def test_what_messages_name_is_not_compared_again():
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    context, x = Context.of(comm), np.ones(1000)
    numbers = []
    for _ in range(5):
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        numbers.append(context.next_call())
    assert np.diff(numbers).tolist() == [2, 2, 2, 2]
    comm.Bcast(x, algorithm="binomial")  # its hash does not know the type of the elements
    before = context.next_call()
    comm.Bcast(x, algorithm="binomial")
    assert context.next_call() - before > 2
    comm.Free()


def test_where_results_are_compared_calls_are_each_time():
    comm = mpicoll.Communicator(WORLD.Dup(), check="always,digest")
    compared = []
    for _ in range(4):
        comm.Allreduce(MPI.IN_PLACE, np.ones(1000), algorithm="ring")
        compared.append(Context.of(comm).comparisons)
    assert np.diff(compared).tolist() == [1, 1, 1]
    comm.Free()


@pytest.mark.parametrize("count", SIZES)
def test_a_repeated_call_that_differs_is_named_by_messages(count):
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    x, y = np.ones(count), np.empty(count)
    for op in [MPI.SUM, MPI.MAX] * 4:
        comm.Allreduce(x, y, op, algorithm="ring")
    text = raised_alike(comm, lambda: comm.Allreduce(x, y, MPI.MAX if RANK == LAST else MPI.SUM, algorithm="ring"))
    assert "MAX" in text and "SUM" in text and f"rank {LAST}: " in text


def test_small_calls_are_compared_in_time_between_those_that_messages_name():
    """On whatever way a rank's calls go: through doors, or parsed."""
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    context, x, y, small = Context.of(comm), np.ones(4), np.empty(4), np.zeros(1)
    given = memoryview(x) if RANK == 0 else x  # no door takes that
    compared = context.comparisons
    for number in range(1500):
        comm.Allreduce(given, y)
        small[0] = number if RANK == 0 else -1
        comm.Bcast(small)
        assert (y == SIZE).all() and small[0] == number
    assert context.comparisons - compared >= 5
    comm.Free()
