"""The collectives that compute, without waiting. Each returns a request for Wait, Test and MPI.Request.Waitall.

All ranks begin the collectives of a communicator in the same order; they may wait in any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..calls import arguments
from .base import Base

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py.typing import BufSpec, BufSpecB, InPlace

    from ..algorithms import AllreduceName, ReduceName, ReduceScatterName
    from ..buffers import Contributions

_IALLREDUCE = MPI.Intracomm.Iallreduce


class NonBlockingReductions(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Ireduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM, root: int = 0, *,
        algorithm: ReduceName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Reduce` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, op, root, algorithm, segment_bytes
            As of `Reduce`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Reduce`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.reduce, (sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Iallreduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: AllreduceName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Allreduce` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, op, algorithm, segment_bytes
            As of `Allreduce`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Allreduce`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        if algorithm is None and segment_bytes is None and self._small_iallreduce(recvbuf, sendbuf, op):
            return self._begin_small(_IALLREDUCE, arguments.allreduce, (sendbuf, recvbuf, op))
        return self._begin(arguments.allreduce, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace | Contributions, recvbuf: BufSpec | BufSpecB, op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Reduce_scatter_block` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, op, algorithm, segment_bytes
            As of `Reduce_scatter_block`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Reduce_scatter_block`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.reduce_scatter_block, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Ireduce_scatter(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Reduce_scatter` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, recvcounts, op, algorithm, segment_bytes
            As of `Reduce_scatter`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Reduce_scatter`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)
