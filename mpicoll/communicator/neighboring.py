"""Collectives of neighbours, on communicators with a topology, in their three forms.

The neighbours are those of MPI: on a grid the one below and the one above in each dimension, of a
graph those that the program has named, in this order. There is a block for each, also for
MPI.PROC_NULL, whose block is left as it is.
"""

# mypy: disable-error-code="override"
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..calls import neighbor_call
from .base import Base, _door

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW

    from ..algorithms import NeighborName
    from .handles import Plan


class Neighboring(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    _passes_neighbor_allgather = _door("neighbor_allgather")
    _passes_neighbor_alltoall = _door("neighbor_alltoall")
    _passes_neighbor_allgatherv = _door("neighbor_allgatherv")
    _passes_neighbor_alltoallv = _door("neighbor_alltoallv")

    def Neighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank sends its block to all its destinations, and gets one from each source.

        Parameters
        ----------
        sendbuf : buffer
            One block, of the same bytes on every rank.
        recvbuf : buffer
            A block for each source, in the order of the sources.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("neighbor_allgather")`. None: chosen by the graph.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: whole.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, the communicator has no topology, a
            buffer is MPI.IN_PLACE, or ranks do not name each other as neighbours; before anything
            is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `direct`: one round, a message per neighbour. `combined`: three rounds, and between two
        nodes one message, in which each block travels once.
        """
        if self._passes_neighbor_allgather(sendbuf, recvbuf, algorithm, segment_bytes):
            return
        parse = neighbor_call.neighbor_allgather
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Neighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """`Neighbor_allgather` of blocks of any sizes.

        `combined` lets ranks exchange the sizes before each call: bind it as a plan.
        """
        if self._passes_neighbor_allgatherv(sendbuf, recvbuf, algorithm, segment_bytes):
            return
        parse = neighbor_call.neighbor_allgatherv
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Neighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank sends a block to each of its destinations, and gets one from each source.

        Parameters
        ----------
        sendbuf : buffer
            A block for each destination, in their order; all blocks of all ranks have one size.
        recvbuf : buffer
            A block for each source, in the order of the sources.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("neighbor_alltoall")`. None: chosen by the graph.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: whole.

        Raises
        ------
        ArgumentError, BufferError
            As `Neighbor_allgather`.

        Cost
        ----
        `direct`: one round, a message per neighbour. `combined`: three rounds, and between two
        nodes one message.

        Examples
        --------
        >>> grid = comm.Create_cart([2, 2, 2], periods=[True] * 3)
        >>> grid.Neighbor_alltoall(faces, halo)
        """
        if self._passes_neighbor_alltoall(sendbuf, recvbuf, algorithm, segment_bytes):
            return
        parse = neighbor_call.neighbor_alltoall
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Neighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """`Neighbor_alltoall` of blocks of any sizes.

        `combined` lets ranks exchange the sizes before each call: bind it as a plan.
        """
        if self._passes_neighbor_alltoallv(sendbuf, recvbuf, algorithm, segment_bytes):
            return
        parse = neighbor_call.neighbor_alltoallv
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Neighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """`Neighbor_alltoallv` with a datatype for each block; displacements are in bytes.

        Blocks are packed, unless they lie one after the other.
        """
        parse = neighbor_call.neighbor_alltoallw
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    # Non-blocking.

    def Ineighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Neighbor_allgather`; see there."""
        parse = neighbor_call.neighbor_allgather
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ineighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Neighbor_allgatherv`; see there."""
        parse = neighbor_call.neighbor_allgatherv
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ineighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Neighbor_alltoall`; see there."""
        parse = neighbor_call.neighbor_alltoall
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ineighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Neighbor_alltoallv`; see there."""
        parse = neighbor_call.neighbor_alltoallv
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ineighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Neighbor_alltoallw`; see there."""
        parse = neighbor_call.neighbor_alltoallw
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    # Persistent.

    def Neighbor_allgather_init(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Neighbor_allgather`; see there."""
        parse = neighbor_call.neighbor_allgather
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Neighbor_allgatherv_init(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Neighbor_allgatherv`; see there."""
        parse = neighbor_call.neighbor_allgatherv
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Neighbor_alltoall_init(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Neighbor_alltoall`; see there."""
        parse = neighbor_call.neighbor_alltoall
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Neighbor_alltoallv_init(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Neighbor_alltoallv`; see there."""
        parse = neighbor_call.neighbor_alltoallv
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Neighbor_alltoallw_init(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: NeighborName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Neighbor_alltoallw`; see there."""
        parse = neighbor_call.neighbor_alltoallw
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)
