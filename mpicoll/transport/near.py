"""Messages inside a node: how they are started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import filterfalse
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import buffers
from ..binding import Instruction, Span, Step
from ..schedule import Write, Written
from ..shared_memory import (
    BLOCKING,
    PLANS,
    TASKS,
    Distant,
    Incoming,
    Landing,
    Links,
    Neighbour,
    Outgoing,
    Packing,
    Pipe,
    Writing,
)
from .channel import Channel

#: bytes of a piece: a bcast of 256 KiB takes 0.75 of the time that it takes with pieces of 512 KiB,
#: and with pieces of 32 KiB an allreduce of 1 MiB takes 1.4 times as long
_CHUNK = 64 << 10


class Ends(NamedTuple):
    """The pipes to and from a rank of the node, and the rank's memory."""

    out: Pipe
    inward: Pipe
    peer: Neighbour


class Near:
    """The ranks of the node, as a call of one kind reaches them.

    dtype: of the elements. reduce: reduce(lower, higher, out), where the call reduces.
    """

    def __init__(
        self, links: Links, channel: Channel, dtype: Any, reduce: Callable[..., object] | None,
        nonblocking: bool, persistent: bool,
    ) -> None:  # fmt: skip
        #: the other ranks of the node
        self.ranks = frozenset(links.ranks)
        #: lets MPI progress, and raises where a rank has given up
        self.look = links.look
        self._bit = 0 if persistent else channel.number_bit
        self._links = links
        self._channel = channel
        self._dtype = dtype
        self._reduce = reduce
        self._kind = PLANS if persistent else TASKS if nonblocking else BLOCKING
        #: what a rank does between polls
        self.backoff = links.backoff(self._kind)

    @property
    def is_blocking(self) -> bool:
        """Whether the caller waits for the call."""
        return self._kind is BLOCKING

    @property
    def chunk(self) -> int:
        """Bytes of the longest piece that the extension copies to a slot."""
        itemsize = int(self._dtype.itemsize)
        return min(self._links.chunk, _CHUNK) // itemsize * itemsize

    @property
    def tracks(self) -> int:
        """How many pipes the calls of this kind take turns in."""
        return len(self._kind)

    def track(self, tag: int) -> int:
        """The number of the pipes that a call with this tag uses."""
        return (tag >> self._bit) % self.tracks

    def pipes(self, rank: int, track: int) -> Ends:
        """What the messages to and from a rank go through."""
        links = self._links
        out = links.to(rank, self._kind).pipes[track]
        inward = links.from_(rank, self._kind).pipes[track]
        return Ends(out, inward, links.peers[rank])

    @property
    def slot(self) -> int:
        """Bytes of the longest message that lies in a slot as soon as it is sent."""
        return self._links.chunk - int(self._dtype.itemsize)

    def distant(self, start: Callable[[int], MPI.Request]) -> Callable[[int], Distant]:
        """A function of the tag that starts a message to or from another node."""
        return lambda tag: Distant(start(tag), self.backoff)

    def opened_first(self, steps: list[Step]) -> list[Step]:
        """The same steps, which first open memory that other ranks of the node write to."""

        def is_open(piece: Instruction) -> bool:
            return piece.kind is Written and piece.peer in self.ranks

        opened = [piece for step in steps for piece in filter(is_open, step.starts)]
        if not opened:
            return steps
        left = [step._replace(starts=list(filterfalse(is_open, step.starts))) for step in steps]
        return [left[0]._replace(starts=opened + left[0].starts), *left[1:]]

    def sending(
        self, piece: Instruction, part: buffers.TypedPart | None = None
    ) -> Callable[[Instruction], Callable[[int], Any]]:
        """Makes, of this message in some memory, a function of the tag that starts it there.

        part: what is packed by it.
        """
        rank = piece.peer
        assert rank is not None
        outward = self._links.to(rank, self._kind)
        message: Callable[..., Outgoing] = Outgoing
        if piece.kind is Write:
            message = partial(Writing, self._links.from_(rank, self._kind), self._links.peers[rank])
        elif part is not None:
            message = partial(Packing, part)
        itemsize = self._dtype.itemsize

        def place(placed: Instruction) -> Callable[[int], Any]:
            through_mpi = self._channel.sender(buffers.bytes_at(*placed.span), rank)
            return message(outward, *placed.span, itemsize, through_mpi).start

        return place

    def receiving(
        self, piece: Instruction, part: buffers.TypedPart | None = None
    ) -> Callable[[Instruction], Callable[[int], Any]]:
        """The same for a message to this rank, which may be reduced as it comes.

        part: what it is unpacked to.
        """
        rank = piece.peer
        assert rank is not None
        inward = self._links.from_(rank, self._kind)
        peer = self._links.peers[rank]
        message: Callable[..., Incoming] = Incoming
        if piece.kind is Written:
            message = partial(Landing, self._links.to(rank, self._kind))

        def place(placed: Instruction) -> Callable[[int], Any]:
            if placed.operand is None:  # of any type
                into = landing = _array(placed.writes[0], np.uint8)
                take, take_part = _copied(into) if part is None else _unpacked(part)
            else:
                into = _array(placed.writes[0], self._dtype)
                landing = into if placed.landing is None else _array(placed.landing, self._dtype)
                assert self._reduce is not None
                other = _array(placed.reads[0], self._dtype)
                take, take_part = _reduced(self._reduce, placed.operand, other, into)
            through_mpi = self._channel.receiver(buffers.bytes_at(*buffers.span(landing)), rank)
            return message(inward, peer, landing, through_mpi, take, take_part).start

        return place


def _array(span: Span, dtype: Any) -> Any:
    return buffers.at(span[0], span[1] - span[0], dtype)


def _copied(into: Any) -> tuple[Callable[..., object], Callable[..., object]]:
    """Functions that copy a message, whole and in part, into an array."""

    def take(message: Any) -> None:
        if message is not into:  # else it came through MPI
            np.copyto(into, message)

    def take_part(message: Any, start: int, end: int) -> None:
        np.copyto(into[start:end], message)

    return take, take_part


def _unpacked(part: buffers.TypedPart) -> tuple[Callable[..., object], Callable[..., object]]:
    """Functions that unpack a message, whole and in part."""

    def take(message: Any) -> None:
        part.unpack(message, 0, part.nbytes)

    return take, part.unpack


def _reduced(
    function: Callable[..., object], operand: int, other: Any, into: Any
) -> tuple[Callable[..., object], Callable[..., object]]:
    """Functions that reduce a message with another array. operand: which operand the message is."""
    if operand:

        def take(message: Any) -> None:
            function(other, message, into)

        def take_part(message: Any, start: int, end: int) -> None:
            function(other[start:end], message, into[start:end])

    else:

        def take(message: Any) -> None:
            function(message, other, into)

        def take_part(message: Any, start: int, end: int) -> None:
            function(message, other[start:end], into[start:end])

    return take, take_part
