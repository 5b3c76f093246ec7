"""The first pass of binding: operations of a schedule's rounds become instructions on memory."""

from collections.abc import Callable, Iterator

from .. import buffers
from ..schedule import RECEIVES, SENDS, Copy, Reduce
from .program import Instruction, Span
from .scratch import Memory, Round


def lowered(
    operations: Round, memory: Memory, where_reduced: Callable[[Span], Span] = lambda span: span
) -> Iterator[Instruction]:
    """The instructions of one round, receives first, then sends, then computations.

    where_reduced(span of a message): the span on which its elements are reduced.
    """
    for kinds in (RECEIVES, SENDS):
        for operation in operations:
            if type(operation) in kinds:
                for view in memory.views(operation.part):
                    spans = (buffers.span(view),)
                    reads, writes = ((), spans) if kinds is RECEIVES else (spans, ())
                    yield Instruction(type(operation), operation.peer, reads, writes)
    for operation in operations:
        if type(operation) in (Reduce, Copy):
            for views in zip(*map(memory.views, operation)):
                *sources, into = (where_reduced(buffers.span(view)) for view in views)
                if type(operation) is Reduce or sources != [into]:
                    yield Instruction(type(operation), None, tuple(sources), (into,))
