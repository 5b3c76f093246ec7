"""The non-blocking collectives: each returns a request, for Wait, Test and MPI.Request.Waitall.

The buffers must live, and must not be touched, until the request is complete. Wrong arguments raise
before anything is sent; later errors are raised by Wait and Test. All ranks begin the collectives
of a communicator in the same order, and may wait for them in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..calls import allowing, arguments
from .base import Base

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

    from ..algorithms import (
        AllgatherName, AllreduceName, AlltoallName, BarrierName, BcastName, ExscanName, GatherName,
        ReduceName, ReduceScatterName, ScanName, ScatterName,
    )
    from ..buffers import Contributions
    from ..codes import CompressionName


class NonBlocking(Base):
    """The arguments are those of the blocking methods."""

    def Ibcast(
        self, buf: BufSpec, root: int = 0, *,
        algorithm: BcastName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Bcast`; see there."""
        parse = allowing(arguments.bcast, compression)
        return self._begin(parse, (buf, root), algorithm, segment_bytes)

    def Iscatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Scatter`; see there."""
        return self._begin(arguments.scatter, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Iscatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Scatterv`; see there."""
        return self._begin(arguments.scatterv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Igather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Gather`; see there."""
        return self._begin(arguments.gather, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Igatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Gatherv`; see there."""
        return self._begin(arguments.gatherv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Iallgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Allgather`; see there."""
        parse = allowing(arguments.allgather, compression)
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Iallgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Allgatherv`; see there."""
        parse = allowing(arguments.allgatherv, compression)
        return self._begin(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ialltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Alltoall`; see there."""
        return self._begin(arguments.alltoall, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ialltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Alltoallv`; see there."""
        return self._begin(arguments.alltoallv, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ialltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Alltoallw`; see there."""
        return self._begin(arguments.alltoallw, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ireduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM, root: int = 0, *,
        algorithm: ReduceName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Reduce`; see there."""
        parse = allowing(arguments.reduce, compression)
        return self._begin(parse, (sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Iallreduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: AllreduceName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Allreduce`; see there."""
        parse = allowing(arguments.allreduce, compression)
        return self._begin(parse, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace | Contributions, recvbuf: BufSpec | BufSpecB,
        op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Reduce_scatter_block`; see there."""
        parse = allowing(arguments.reduce_scatter_block, compression)
        return self._begin(parse, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Ireduce_scatter(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> MPI.Request:
        """Non-blocking `Reduce_scatter`; see there."""
        parse = allowing(arguments.reduce_scatter, compression)
        return self._begin(parse, (sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)

    def Iscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: ScanName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Scan`; see there."""
        return self._begin(arguments.scan, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Iexscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: ExscanName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """Non-blocking `Exscan`; see there."""
        return self._begin(arguments.exscan, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Ibarrier(
        self, *, algorithm: BarrierName | None = None, segment_bytes: int | None = None
    ) -> MPI.Request:
        """Non-blocking `Barrier`; see there."""
        return self._begin(arguments.barrier, (), algorithm, segment_bytes)
