"""The vocabulary: partition, rounds, combinators."""

from itertools import pairwise

import pytest

from mpicoll.collectives import ALLREDUCE
from mpicoll.schedule import (
    INPUT,
    Copy,
    Input,
    Output,
    Part,
    Recv,
    Reduce,
    Scratch,
    Send,
    bounds,
    folded,
    offsets,
    operations_of,
    pieces,
    power_of_two,
    renamed,
    rounds,
    segmented,
)

COUNTS = (0, 1, 2, 6, 7, 8, 101, 2**31 + 1)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("blocks", (1, 2, 7, 64))
def test_blocks_are_equal_up_to_one_element_and_cover_the_vector(count, blocks):
    edges = bounds(count, blocks)
    sizes = [end - start for start, end in pairwise(edges)]
    assert len(sizes) == blocks and edges[0] == 0 and edges[-1] == count
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    assert offsets(sizes) == edges


@pytest.mark.parametrize("count", (0, 1, 5, 7, 101))
def test_pieces_are_the_elements_of_the_range_in_order(count):
    edges = bounds(count, 7)
    for first in range(7):
        for blocks in range(8):
            wanted = [n for b in range(first, first + blocks) for n in range(edges[b % 7], edges[b % 7 + 1])]
            for limit in (None, 1, 3):
                cut = list(pieces(Output(first, blocks), edges, limit))
                assert [n for start, end in cut for n in range(start, end)] == wanted
                assert all(0 < end - start <= (limit or count) for start, end in cut)
                assert limit or len(cut) <= 2


def test_a_generator_may_yield_one_operation_or_several():
    send, recv = Send(1, Output(0)), Recv(1, Output(1))
    assert operations_of(send) == (send,)
    assert operations_of([send, recv]) == (send, recv)
    assert operations_of(()) == ()


def test_rounds_reduce_ranks_and_blocks_to_their_range_and_leave_out_what_is_idle():
    def generator(rank, size):
        yield Send(rank + 1, Input(rank + 5, 2)), Recv(rank - 1, Output(-1)), Send(0, Input(0, 0))
        yield Copy(Output(3), Output(3))
        yield Reduce(Input(4), Output(0), Output(-4))

    assert list(rounds(generator, 3, 4)) == [
        (Send(0, Input(0, 2)), Recv(2, Output(3))),
        (),
        (Reduce(Input(0), Output(0), Output(0)),),
    ]


def test_only_what_does_nothing_is_left_out():
    twice = Reduce(Input(0), Input(0), Output(0))  # wrong in an algorithm, so the verifier must see it
    idle = Copy(Input(1), Input(1)), Reduce(Input(0, 0), Output(0, 0), Output(0, 0)), Recv(1, Output(2, 0))
    assert list(rounds(lambda rank, size: iter([(*idle, twice)]), 0, 3)) == [(twice,)]


def test_root_and_blocks_are_given_to_generators_that_take_them():
    def rooted(rank, size, root):
        yield Send(root, Input(rank))

    def pipelined(rank, size, root, blocks):
        yield Send(root, Input(0, blocks))

    assert list(rounds(rooted, 1, 4, root=3)) == [(Send(3, Input(1)),)]
    assert list(rounds(pipelined, 1, 4, root=0, blocks=9)) == [(Send(0, Input(0, 9)),)]


def test_renamed_changes_places_ranks_and_blocks():
    steps = renamed([Send(1, Input(2)), (Copy(Input(0, 2), Scratch("sum", 0, 2)),)], {INPUT: "mine"},
                    peer=lambda rank: rank + 10, block=lambda first, count: [(2 * first, 2 * count)])
    assert list(steps) == [(Send(11, Part("mine", 4, 2)),), (Copy(Part("mine", 0, 4), Scratch("sum", 0, 4)),)]


def test_segmented_sends_one_segment_behind_the_other():
    @segmented
    def line(rank, size):
        yield from ((),) * (rank - 1)
        if rank:
            yield Recv(rank - 1, Output(0))
        if rank < size - 1:
            yield Send(rank + 1, Output(0))

    assert list(rounds(line, 1, 3, blocks=3)) == [
        (Recv(0, Output(0)),),
        (Send(2, Output(0)), Recv(0, Output(1))),
        (Send(2, Output(1)), Recv(0, Output(2))),
        (Send(2, Output(2)),),
    ]


@pytest.mark.parametrize("size", range(2, 20))
def test_folded_asks_its_generator_for_powers_of_two_only(size):
    asked = []

    @folded(ALLREDUCE)
    def algorithm(rank, size):
        asked.append((rank, size))
        return iter(())

    for rank in range(size):
        list(rounds(algorithm, rank, size))
    core = power_of_two(size)
    assert asked == [(rank, core) for rank in range(core)] and core <= size < 2 * core
