"""The persistent collectives: each returns a `Plan`, which is started any number of times.

A plan is bound to its buffers: Start reads them, and they must not be touched until Wait. Wrong
arguments raise before anything is sent. All ranks make the plans of a communicator in the same
order.
"""

# A plan is no MPI.Prequest, which mpi4py returns here: MPI.Prequest.Startall does not take it.
# mypy: disable-error-code="override"
# pyright: reportIncompatibleMethodOverride=false

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
    from .handles import Plan


class Persistent(Base):
    """The arguments are those of the blocking methods, and `info`: hints for MPI."""

    def Bcast_init(
        self, buf: BufSpec, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: BcastName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Bcast`; see there."""
        parse = allowing(arguments.bcast, compression)
        return self._persist(parse, (buf, root), info, algorithm, segment_bytes)

    def Scatter_init(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace,
        root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Scatter`; see there."""
        return self._persist(
            arguments.scatter, (sendbuf, recvbuf, root), info, algorithm, segment_bytes
        )

    def Scatterv_init(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace,
        root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Scatterv`; see there."""
        return self._persist(
            arguments.scatterv, (sendbuf, recvbuf, root), info, algorithm, segment_bytes
        )

    def Gather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None,
        root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Gather`; see there."""
        return self._persist(
            arguments.gather, (sendbuf, recvbuf, root), info, algorithm, segment_bytes
        )

    def Gatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None,
        root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Gatherv`; see there."""
        return self._persist(
            arguments.gatherv, (sendbuf, recvbuf, root), info, algorithm, segment_bytes
        )

    def Allgather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Allgather`; see there."""
        parse = allowing(arguments.allgather, compression)
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Allgatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Allgatherv`; see there."""
        parse = allowing(arguments.allgatherv, compression)
        return self._persist(parse, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Alltoall`; see there."""
        return self._persist(arguments.alltoall, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Alltoallv_init(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Alltoallv`; see there."""
        return self._persist(
            arguments.alltoallv, (sendbuf, recvbuf), info, algorithm, segment_bytes
        )

    def Alltoallw_init(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Alltoallw`; see there."""
        return self._persist(
            arguments.alltoallw, (sendbuf, recvbuf), info, algorithm, segment_bytes
        )

    def Reduce_init(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ReduceName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Reduce`; see there."""
        parse = allowing(arguments.reduce, compression)
        return self._persist(parse, (sendbuf, recvbuf, op, root), info, algorithm, segment_bytes)

    def Allreduce_init(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec,
        op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AllreduceName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Allreduce`; see there."""
        parse = allowing(arguments.allreduce, compression)
        return self._persist(parse, (sendbuf, recvbuf, op), info, algorithm, segment_bytes)

    def Reduce_scatter_block_init(
        self, sendbuf: BufSpecB | InPlace | Contributions, recvbuf: BufSpec | BufSpecB,
        op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Reduce_scatter_block`; see there."""
        parse = allowing(arguments.reduce_scatter_block, compression)
        return self._persist(parse, (sendbuf, recvbuf, op), info, algorithm, segment_bytes)

    def Reduce_scatter_init(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Plan:
        """Persistent `Reduce_scatter`; see there."""
        parse = allowing(arguments.reduce_scatter, compression)
        return self._persist(
            parse, (sendbuf, recvbuf, recvcounts, op), info,
            algorithm, segment_bytes,
        )

    def Scan_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec,
        op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ScanName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Scan`; see there."""
        return self._persist(
            arguments.scan, (sendbuf, recvbuf, op), info, algorithm, segment_bytes
        )

    def Exscan_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec,
        op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ExscanName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Exscan`; see there."""
        return self._persist(
            arguments.exscan, (sendbuf, recvbuf, op), info, algorithm, segment_bytes
        )

    def Barrier_init(
        self, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: BarrierName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """Persistent `Barrier`; see there."""
        return self._persist(arguments.barrier, (), info, algorithm, segment_bytes)
