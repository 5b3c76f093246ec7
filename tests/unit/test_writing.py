"""Writes: a schedule is refused where memory is used that another rank may have written already."""

import pytest

from mpicoll import ScheduleError, algorithms
from mpicoll.schedule import Copy, Input, Output, Recv, Reduce, Scratch, Send, Write, Written
from mpicoll.verify import check


def allgather(rank, size):
    """Everyone writes its block into all others' vectors."""
    peers = [peer for peer in range(size) if peer != rank]
    yield *[Write(peer, Input(rank)) for peer in peers], *[Written(peer, Output(peer)) for peer in peers], \
        Copy(Input(rank), Output(rank))


def test_what_nobody_touches_before_may_be_written():
    for size in range(2, 9):
        check("allgather", allgather, size)


def test_memory_that_was_used_before_is_refused():
    def used(rank, size):
        yield Copy(Input(rank), Output(rank))
        yield Send(rank + 1, Output(rank)), Recv(rank - 1, Scratch("theirs", rank - 1))
        yield Copy(Scratch("theirs", rank - 1), Output(rank - 1))
        yield from allgather(rank, size)

    with pytest.raises(ScheduleError, match=r"rank 0, round 3: Copy.* uses what rank 1 writes for round 4, maybe before it"):
        check("allgather", used, 2)


def test_memory_that_is_received_into_before_is_refused():
    def received(rank, size):
        yield Send(rank + 1, Input(rank)), Recv(rank - 1, Output(rank - 1))
        yield from allgather(rank, size)

    with pytest.raises(ScheduleError, match="rank 0, round 1: Recv.* uses what rank 1 writes"):
        check("allgather", received, 2)


def exchange(rank, size):
    """The direct allreduce of two ranks."""
    peer = 1 - rank
    yield Send(peer, Input(peer)), Recv(peer, Scratch("theirs", rank)), \
        Reduce(Scratch("theirs", rank), Input(rank), Output(rank))
    yield Write(peer, Output(rank)), Written(peer, Output(peer))


def test_in_place_the_writer_may_have_read_it_in_an_earlier_round():
    check("allreduce", exchange, 2)


def test_in_place_another_rank_may_not_read_it():
    direct = algorithms.find("allreduce", "direct").generator

    def also_sent(rank, size):
        first, second = direct(rank, size)
        yield *first, Send(rank + 1, Input(rank + 2)), Recv(rank - 1, Scratch("unused", rank + 1))
        yield second

    check("allreduce", direct, 3)
    with pytest.raises(ScheduleError, match="uses what rank 2 writes"):
        check("allreduce", also_sent, 3)


def test_a_write_must_meet_what_awaits_it():
    def sent(rank, size):
        peer = 1 - rank
        yield Send(peer, Input(rank)), Written(peer, Output(peer)), Copy(Input(rank), Output(rank))

    with pytest.raises(ScheduleError, match="rank 0, round 1: Send.* meets Written"):
        check("allgather", sent, 2)


def test_a_write_that_is_received_is_refused():
    def written(rank, size):
        peer = 1 - rank
        yield Write(peer, Input(rank)), Recv(peer, Output(peer)), Copy(Input(rank), Output(rank))

    with pytest.raises(ScheduleError, match="Write.* meets Recv"):
        check("allgather", written, 2)
