"""Calls of neighbourhood collectives: their arguments, sizes of blocks, and schedules.

In Neighbor_allgather and Neighbor_alltoall all blocks of all ranks have one size, as MPI demands.
Those of the others have sizes that only their source and destination know, until ranks share them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from mpi4py import MPI

from .. import errors
from ..algorithms import LIBRARIES
from ..buffers import Operand, operand, overlap, typed_blocks
from ..errors import ArgumentError
from ..execute import Schedule, surroundings_of
from ..graphs import ALLGATHER, ALLTOALL, Block, Neighborhood
from ..schedule import INPUT, OUTPUT, offsets
from ..select import Query
from ..support import settings
from ..support.quirks import applies
from ..support.units import format_bytes
from .call import Call

Comm = MPI.Intracomm
#: algorithms in which a rank carries no blocks of others
_OWN_COUNTS_SUFFICE = ("direct", "packed")
#: bytes of a block up to which a schedule is faster than MPI's own blocking call
_INSIDE = 16 << 10
#: bytes of a block from which on a plan is faster than MPI's own
_SMALL_PLAN = 1 << 10
_COMBINED = 2 << 10
_PACKED = 8 << 10
#: calls of neighbours that `explain` takes, also in mpi4py's spelling
NeighborCallName: TypeAlias = Literal[
    "neighbor_allgather", "neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv",
    "neighbor_alltoallw", "ineighbor_alltoallw", "Neighbor_alltoallw", "Ineighbor_alltoallw",
    "ineighbor_allgather", "ineighbor_allgatherv", "ineighbor_alltoall", "ineighbor_alltoallv",
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv",
    "Ineighbor_allgather", "Ineighbor_allgatherv", "Ineighbor_alltoall", "Ineighbor_alltoallv",
]


def neighbor_allgather(comm: Comm, sendbuf: object, recvbuf: object) -> NeighborCall:
    call = NeighborCall(comm, "Neighbor_allgather", ALLGATHER, sendbuf, recvbuf)
    return call.parsed(is_vector=False)


def neighbor_allgatherv(comm: Comm, sendbuf: object, recvbuf: object) -> NeighborCall:
    call = NeighborCall(comm, "Neighbor_allgatherv", ALLGATHER, sendbuf, recvbuf)
    return call.parsed(is_vector=True)


def neighbor_alltoall(comm: Comm, sendbuf: object, recvbuf: object) -> NeighborCall:
    call = NeighborCall(comm, "Neighbor_alltoall", ALLTOALL, sendbuf, recvbuf)
    return call.parsed(is_vector=False)


def neighbor_alltoallv(comm: Comm, sendbuf: object, recvbuf: object) -> NeighborCall:
    call = NeighborCall(comm, "Neighbor_alltoallv", ALLTOALL, sendbuf, recvbuf)
    return call.parsed(is_vector=True)


def neighbor_alltoallw(comm: Comm, sendbuf: object, recvbuf: object) -> NeighborCall:
    call = NeighborCall(comm, "Neighbor_alltoallw", ALLTOALL, sendbuf, recvbuf)
    return call.parsed(is_vector=True)


class NeighborCall(Call):
    """A call of one neighbourhood collective on one rank."""

    collective: Neighborhood

    def __init__(
        self, comm: Comm, method: str, collective: Neighborhood, sendbuf: object, recvbuf: object
    ) -> None:
        super().__init__(comm, method, collective, (sendbuf, recvbuf))
        if sendbuf is MPI.IN_PLACE or recvbuf is MPI.IN_PLACE:
            raise ArgumentError(f"{method}: MPI has no IN_PLACE for neighbours: pass two buffers")
        try:
            self.surroundings = surroundings_of(comm).look()
        except ArgumentError as error:
            raise ArgumentError(f"{method}: {error}") from None
        #: whether blocks have sizes of their own
        self.is_vector = False
        #: bytes of the block of each place
        self.sent: list[int] = []
        self.received: list[int] = []
        #: the bytes of all blocks, where the ranks have told each other
        self.agreed: list[int] | None = None

    def parsed(self, is_vector: bool) -> NeighborCall:
        """Parse both buffers; returns itself."""
        self.is_vector = is_vector
        sendbuf, recvbuf = self.arguments
        recv = self._blocks(recvbuf, len(self.surroundings.sources), writable=True)
        if self.collective.gathers:
            send = operand(sendbuf)
            # a rank without destinations may have nothing to send, as it has none in an alltoall
            is_absent = not (is_vector or self.surroundings.targets or send.nbytes)
            self.sent = [] if is_absent else [send.nbytes]
        else:
            places = len(self.surroundings.targets)
            send = self._blocks(sendbuf, places)
            self.sent = _sizes(send, places)
        self.received = _sizes(recv, len(self.surroundings.sources))
        if not is_vector and self.sent and self.received and self.sent[0] != self.received[0]:
            raise errors.BufferError(
                f"{self.method}: the send buffer has blocks of {self.sent[0]} bytes, "
                f"the receive buffer of {self.received[0]}"
            )
        self.with_operands(send, recv)
        return self

    def _blocks(self, buffer: object, places: int, writable: bool = False) -> Operand:
        """The operand of a buffer with a block for each place; MPI does not look at one without."""
        if not places:
            return operand(np.empty(0, np.uint8))
        if self.method == "Neighbor_alltoallw":
            return typed_blocks(buffer, places, writable=writable)
        return operand(buffer, places, vector=self.is_vector, writable=writable)

    def _check_overlap(self, send: Operand, recv: Operand) -> None:
        if overlap(send, recv):
            raise errors.BufferError(
                f"{self.method}: send and receive buffer overlap, and MPI has no IN_PLACE for "
                "neighbours: take two arrays"
            )

    # Sizes of blocks.

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, where all have one size; 0 on a rank without places."""
        return (self.received or self.sent or [0])[0]

    @property
    def nbytes(self) -> int | None:
        """None: ranks have different numbers of blocks."""
        return None

    @property
    def own_bytes(self) -> int:
        """Bytes of a block, where all have one size."""
        return self.block_bytes

    @property
    def counts_shared(self) -> bool:
        """Whether all ranks know the bytes of every block; one without places knows none."""
        return not (self.is_vector or self.surroundings.has_idle)

    @property
    def explained_bytes(self) -> int | None:
        """Bytes of the blocks that this rank has."""
        return sum(self.sent)

    def counts_known(self, algorithm: str) -> bool:
        """Whether this rank knows the bytes of every block that it moves under an algorithm."""
        return self.counts_suffice(algorithm)

    def counts_suffice(self, algorithm: str) -> bool:
        """Whether each rank knows all counts that it needs under an algorithm."""
        return not self.is_vector or algorithm in LIBRARIES or algorithm in _OWN_COUNTS_SUFFICE

    def share_counts(self, number: int) -> Generator[MPI.Request, None, None]:
        """Requests by which ranks learn, and compare, the bytes of all blocks."""
        if self.agreed is None:
            self.agreed = yield from self.surroundings.share_counts(
                self.context, self.method, self.collective.gathers, self.sent, self.received,
                number)

    @property
    def own_edges(self) -> dict[str, list[int]]:
        """Offsets in bytes of the blocks of input and output."""
        return {INPUT: offsets(self.sent), OUTPUT: offsets(self.received)}

    # Description.

    @property
    def stated_size(self) -> str:
        """The size of the call in words, the same on all ranks that make it."""
        return f"blocks of {self.block_bytes} bytes" if self.counts_shared else "blocks"

    @property
    def has_one_type(self) -> bool:
        """Whether all ranks move elements of one type."""
        return self.counts_shared

    def common_edges(self, edges: list[int]) -> object:
        """What all ranks know of the blocks."""
        return self.block_bytes if self.counts_shared else ""

    @property
    def text(self) -> str:
        """The call in a few words, the same on all ranks that make it."""
        return f"{self.form} of {self.stated_size}" if self.counts_shared else self.form

    # Serving.

    @property
    def native_arguments(self) -> Sequence[Any]:
        """MPI's arguments, with a count also for a side without places.

        quirk: counts-without-neighbours
        """
        arguments = list(self.arguments)
        if self.is_vector or not self.block_bytes:
            return arguments
        absent = [np.empty(self.block_bytes, np.uint8), self.block_bytes, MPI.BYTE]
        if not self.sent:
            arguments[0] = absent
        if not self.received:
            arguments[1] = absent
        return arguments

    def schedule(self, algorithm: str, segment_bytes: int | None = None) -> Schedule:
        """This rank's rounds under an algorithm, for which it must know the counts."""
        rounds, carried = self.surroundings.routes(self.collective.name, algorithm)
        return Schedule(algorithm, rounds, offsets(map(self._bytes_of, carried)), segment_bytes)

    def _bytes_of(self, block: Block) -> int:
        """The size of any block that this rank carries."""
        if not self.is_vector:
            return self.block_bytes
        if block.source == self.rank:
            return self.sent[block.place]
        gathers = self.collective.gathers
        if self.agreed is not None:
            return self.agreed[self.surroundings.place_of(block, gathers)]
        into = self.surroundings.place_from[block.source]
        return self.received[into if gathers else self.surroundings.into[block]]

    @property
    def query(self) -> Query:
        """What selection may know of this call."""
        obstacle = self._without_progress()
        return Query(
            self.collective.name,
            self.context.topology,
            None,
            obstacle=obstacle,
            unfit=self._unfit_for_native(),
            nccl="it has no calls of neighbours",
            once=self.nonblocking,
            engine=settings.C if self.runs_in_c else settings.PYTHON,
            by_graph=None if obstacle else self._suggested(),
        )

    @property
    def _gains_as_a_plan(self) -> bool:
        return self.context.topology.node_count == 1 and self.block_bytes >= _SMALL_PLAN

    def _unfit_for_native(self) -> str:
        """Why MPI's own call cannot serve it, or ""."""
        returns_early = self.nonblocking or self.persistent
        exchanges = returns_early and self.surroundings.crosses and not self.collective.gathers
        if exchanges and applies("neighbor-directions"):
            return (
                "this MPI library's calls that return before their end swap the two blocks of a "
                "periodic dimension of one or two ranks"
            )
        return ""

    def _suggested(self) -> tuple[str, str] | None:
        """The algorithm that suits the graph, and why: by what all ranks know alike.

        What the extension executes is faster than MPI's up to some block size, other calls are not
        (benchmarks/run/halo.py).
        """
        one_node = self.context.topology.node_count == 1
        if refusal := self._unfit_for_native():
            is_large = self.counts_shared and self.block_bytes > _PACKED
            return "direct" if one_node or is_large else "packed", refusal
        if not (self.runs_in_c and self.counts_shared):
            return None
        if one_node:
            return self._up_to(_INSIDE, "direct", "neighbours of one node")
        most = self.surroundings.busiest
        if most["combined"] < most["direct"] and self.block_bytes <= _COMBINED:
            return self._up_to(_COMBINED, "combined", "fewer messages between nodes")
        if most["packed"] < most["direct"]:
            return self._up_to(_PACKED, "packed", "fewer messages between nodes")
        return None

    def _up_to(self, most: int, algorithm: str, reason: str) -> tuple[str, str] | None:
        if self.block_bytes > most:
            return None
        return algorithm, f"{reason}, blocks of {format_bytes(most)} bytes or less"


PARSERS: dict[str, Callable[..., NeighborCall]] = {
    parse.__name__: parse
    for parse in (
        neighbor_allgather, neighbor_allgatherv, neighbor_alltoall, neighbor_alltoallv,
        neighbor_alltoallw)
}


def _sizes(whole: Operand, places: int) -> list[int]:
    return whole.counts or [whole.nbytes // max(1, places)] * places
