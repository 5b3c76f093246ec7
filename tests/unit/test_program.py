"""A program is data: it prints, two of them can be compared, and it moves to other memory."""

import sys

import numpy as np

from mpicoll import algorithms
from mpicoll.binding.lowering import lowered
from mpicoll.binding.ordering import by_rounds
from mpicoll.binding.program import Instruction, Program, lies_in, mover
from mpicoll.binding.reduced import reduced_where_they_lie
from mpicoll.binding.scratch import Memory, Vector
from mpicoll.buffers import span
from mpicoll.collectives import ALLREDUCE
from mpicoll.schedule import INPUT, OUTPUT, Copy, Recv, Reduce, Send, bounds

COUNT = 6


def ring(vector, scratch):
    """The program of rank 1 of 2 for a ring on these arrays."""
    rounds = [one for one in ALLREDUCE.program(algorithms.find("allreduce", "ring").placed(None), 1, 2, None, 2) if one]
    vectors = dict.fromkeys((INPUT, OUTPUT), Vector(vector))
    memory = Memory(rounds, bounds(COUNT, 2), vectors, vector.dtype, lambda nbytes: scratch)
    return Program(tuple(by_rounds(list(lowered(one, memory, span)) for one in rounds)), str(vector.dtype), "SUM")


def test_it_is_the_same_on_the_same_memory_and_another_one_elsewhere():
    one, other, scratch = np.zeros(COUNT), np.zeros(COUNT), np.zeros(4096, np.uint8)
    assert ring(one, scratch) == ring(one, scratch)
    assert ring(one, scratch) != ring(other, scratch)


def test_it_moves_with_its_buffers_and_leaves_other_memory_alone():
    one, other, scratch = np.zeros(COUNT), np.zeros(COUNT), np.zeros(4096, np.uint8)
    places, elsewhere = [((span(array)[0], array.nbytes),) for array in (one, other)]
    move = mover(places, elsewhere)
    there = ring(other, scratch)
    for step, expected in zip(ring(one, scratch).steps, there.steps):
        assert [[i.moved(move) for i in part] for part in step[1:]] == list(expected[1:])
    used = [span for step in there.steps for i in step.starts + step.local for span in i.spans]
    assert any(lies_in(span, elsewhere) for span in used)
    assert not any(lies_in(span, places) for span in used)


def test_its_text_has_every_start_wait_and_sum_in_order():
    text = str(ring(np.zeros(COUNT), np.zeros(4096, np.uint8)))
    lines = text.splitlines()[1:]
    words = [line.split(":")[-1].split()[0].rstrip(",") for line in lines if "round" not in line]
    assert text.startswith("elements: float64, op: SUM\n")
    assert words.count("start") == words.count("wait") == 4
    assert words.index("start") < words.index("wait") < words.index("reduce")


def test_what_an_instruction_is():
    send = Instruction(Send, 3, ((0, 8),), ())
    assert (send.is_sent, send.is_received, send.is_started, send.nbytes) == (True, False, True, 8)
    reduced = Instruction(Recv, 3, ((0, 16),), ((32, 48),), operand=1)
    assert (reduced.is_received, reduced.span, reduced.nbytes) == (True, (0, 16), 16)
    assert str(reduced) == "recv, from rank 3, reduced as operand 1, reads 0x0+16, writes 0x20+16"
    assert not any(Instruction(kind, None, ((0, 8),), ((8, 16),)).is_started for kind in (Reduce, Copy))


def calls_for(pieces):
    """Calls of Python functions by which the messages of a round are found that may be reduced where they lie."""
    receives = [Instruction(Recv, 1, (), ((start, start + 8),)) for start in range(0, 8 * pieces, 8)]
    moved = [(10**6 + start, 10**6 + end) for ((start, end),) in (piece.writes for piece in receives)]
    computed = [Instruction(Reduce, None, (own, piece.writes[0]), (own,)) for own, piece in zip(moved, receives)]
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        (found,) = reduced_where_they_lie([receives + computed], {1}, 0, lambda span: False, (0, 8 * pieces))
    finally:
        sys.setprofile(None)
    assert len(found) == pieces and all(piece.operand == 1 for piece in found)
    return count


def test_passes_take_time_in_proportion_to_the_pieces():
    """A vector of 1 GiB has 1,000 of them."""
    assert calls_for(1000) < 12 * calls_for(100)
