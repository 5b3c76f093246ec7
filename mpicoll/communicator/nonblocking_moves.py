"""The collectives that move data, without waiting. Each returns a request for Wait, Test and MPI.Request.Waitall.

All ranks begin the collectives of a communicator in the same order; they may wait in any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..calls import arguments
from .base import Base

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

    from ..algorithms import AllgatherName, AlltoallName, BcastName, GatherName, ScatterName

_IBCAST = MPI.Intracomm.Ibcast
_IALLGATHER = MPI.Intracomm.Iallgather
_IALLTOALL = MPI.Intracomm.Ialltoall


class NonBlockingMoves(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Ibcast(
        self, buf: BufSpec, root: int = 0, *,
        algorithm: BcastName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Bcast` without waiting.

        Parameters
        ----------
        buf, root, algorithm, segment_bytes
            As of `Bcast`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Bcast`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        if algorithm is None and segment_bytes is None and self._small_ibcast(buf, None, root):
            return self._begin_small(_IBCAST, arguments.bcast, (buf, root))
        return self._begin(arguments.bcast, (buf, root), algorithm, segment_bytes)

    def Iscatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Scatter` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, root, algorithm, segment_bytes
            As of `Scatter`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Scatter`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.scatter, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Iscatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Scatterv` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, root, algorithm, segment_bytes
            As of `Scatterv`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Scatterv`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.scatterv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Igather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Gather` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, root, algorithm, segment_bytes
            As of `Gather`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Gather`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.gather, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Igatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Gatherv` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, root, algorithm, segment_bytes
            As of `Gatherv`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Gatherv`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.gatherv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Iallgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Allgather` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, algorithm, segment_bytes
            As of `Allgather`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Allgather`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        if algorithm is None and segment_bytes is None and self._small_iallgather(recvbuf, sendbuf, None):
            return self._begin_small(_IALLGATHER, arguments.allgather, (sendbuf, recvbuf))
        return self._begin(arguments.allgather, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Iallgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Allgatherv` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, algorithm, segment_bytes
            As of `Allgatherv`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Allgatherv`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.allgatherv, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ialltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Alltoall` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, algorithm, segment_bytes
            As of `Alltoall`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Alltoall`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        if algorithm is None and segment_bytes is None and self._small_ialltoall(recvbuf, sendbuf, None):
            return self._begin_small(_IALLTOALL, arguments.alltoall, (sendbuf, recvbuf))
        return self._begin(arguments.alltoall, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Ialltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> MPI.Request:
        """`Alltoallv` without waiting.

        Parameters
        ----------
        sendbuf, recvbuf, algorithm, segment_bytes
            As of `Alltoallv`. The buffers must live, and be left alone, until the request is complete.

        Returns
        -------
        MPI.Request
            For Wait, Test and MPI.Request.Waitall.

        Raises
        ------
        ArgumentError, BufferError
            As `Alltoallv`, before anything is sent; what goes wrong later is raised by Wait and Test.
        """
        return self._begin(arguments.alltoallv, (sendbuf, recvbuf), algorithm, segment_bytes)
