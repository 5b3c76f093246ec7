"""The first pass of binding: operations of a schedule's rounds become instructions on memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..schedule import RECEIVES, SENDS, Copy, Reduce, is_coded
from .program import Decode, Encode, Instruction, Span
from .scratch import Memory, Round


def lowered(
    operations: Round,
    memory: Memory,
    span: Callable[[Any], Span],
    where_reduced: Callable[[Span], Span] = lambda span: span,
) -> Iterator[Instruction]:
    """The instructions of one round, receives first, then sends, then computations.

    span(array of `memory`): where it lies. where_reduced(span of a message): the span on which its
    elements are reduced.
    """
    for kinds in (RECEIVES, SENDS):
        for operation in operations:
            if type(operation) in kinds:
                for view in memory.views(operation.part):
                    spans = (span(view),)
                    reads, writes = ((), spans) if kinds is RECEIVES else (spans, ())
                    yield Instruction(type(operation), operation.peer, reads, writes)
    for operation in operations:
        if type(operation) in (Reduce, Copy):
            kind = _kind(operation)
            for views in zip(*map(memory.views, operation)):
                *sources, into = (where_reduced(span(view)) for view in views)
                if kind is Reduce or sources != [into]:
                    yield Instruction(kind, None, tuple(sources), (into,))


def _kind(operation: Reduce | Copy) -> type:
    """Of the instruction that computes it."""
    if type(operation) is Copy and is_coded(operation.source) != is_coded(operation.into):
        return Encode if is_coded(operation.into) else Decode
    return type(operation)
