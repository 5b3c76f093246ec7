"""A program that the extension executes, as a request that moves when it is tested."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ..binding import Places, Program
from ..transport import Channel
from .library import status
from .lowering import CODE, lowered, refusal

#: buffers that a call may have
_MOST_BUFFERS = 3


def compiled(program: Program, channel: Channel) -> Compiled | None:
    """The program for the extension, or None where it cannot execute it."""
    extension = status().extension
    if extension is None or refusal(program):
        return None
    return Compiled(extension, program, channel)


class Compiled:
    """A program of the extension. The messages of its peers may come from either interpreter."""

    def __init__(self, extension: Any, program: Program, channel: Channel) -> None:
        self._extension = extension
        self._source = program
        self._channel = channel
        self._patience = 0.0
        self.lies_in(())

    def lies_in(self, memory: Places) -> None:
        """Take the buffers of the call, which may be others at each start."""
        assert len(memory) <= _MOST_BUFFERS
        code = list(lowered(self._source, self._channel.ranks, memory))
        #: by instruction: the step, and the number of the request that it awaits
        self._positions = [(step, number) for _, step, number in code]
        starts = [piece for step in self._source.steps for piece in step.starts]
        self._requests = len(starts)
        self._sent = [piece.nbytes for piece in starts if piece.is_sent]
        packed = b"".join(instruction for instruction, *_ in code)
        assert len(packed) == CODE.size * len(code)
        comm = MPI._handleof(self._channel.wire.comm)
        self._program = self._extension.program(packed, self._requests, comm)
        self._next = len(code)
        #: the requests that were given away, by number
        self._taken: list[MPI.Request | None] = [None] * self._requests

    @property
    def sent(self) -> tuple[int, int]:
        """Messages that it sends, and their bytes."""
        return len(self._sent), sum(self._sent)

    def start(self, tag: int, memory: Places, patience: float) -> None:
        """Begin. memory: the buffers of this call; patience: seconds that a test waits."""
        self._patience = patience
        self._next = 0
        self._taken = [None] * self._requests
        self._extension.start(self._program, tag, tuple(address for address, _ in memory))

    def advance(self) -> bool:
        """Execute what need not wait; whether all is done. Raises MPI.Exception."""
        error, self._next = self._extension.advance(self._program, self._patience)
        if error:
            raise MPI.Exception(error)
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether all is done."""
        return self._next == len(self._positions)

    @property
    def position(self) -> tuple[int, int | None]:
        """The step, and the number of the request that it awaits."""
        return self._positions[self._next]

    def Test(self) -> bool:
        """Whether anything has moved: as a request, it stands for the next message alone."""
        before = self._next
        return self.advance() or self._next != before

    def pending(self) -> Sequence[MPI.Request | None]:
        """The requests that MPI has not ended, by number: to be ended by the caller."""
        for number, handle in self._extension.take_requests(self._program).items():
            self._taken[number] = MPI.Request.fromhandle(int.from_bytes(handle, sys.byteorder))
        return self._taken
