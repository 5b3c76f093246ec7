"""The collectives that move data, as plans: bound to their buffers once, then started any number of times.

All ranks make and start the plans of a communicator in the same order. A plan reads and writes the arrays it was made with.
"""

# A plan is no MPI.Prequest, which is what mpi4py promises here: MPI.Prequest.Startall does not take it.
# mypy: disable-error-code="override"
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..calls import arguments
from .base import Base

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

    from ..algorithms import AllgatherName, AlltoallName, BcastName, GatherName, ScatterName
    from .handles import Plan


class PersistentMoves(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Bcast_init(
        self, buf: BufSpec, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: BcastName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Bcast`, to be started any number of times.

        Parameters
        ----------
        buf, root, info, algorithm, segment_bytes
            As of `Bcast`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Bcast`, before anything is sent.
        """
        return self._persist(arguments.bcast, (buf, root), info, algorithm, segment_bytes)

    def Scatter_init(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Scatter`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, root, info, algorithm, segment_bytes
            As of `Scatter`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Scatter`, before anything is sent.
        """
        return self._persist(arguments.scatter, (sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Scatterv_init(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Scatterv`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, root, info, algorithm, segment_bytes
            As of `Scatterv`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Scatterv`, before anything is sent.
        """
        return self._persist(arguments.scatterv, (sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Gather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Gather`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, root, info, algorithm, segment_bytes
            As of `Gather`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Gather`, before anything is sent.
        """
        return self._persist(arguments.gather, (sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Gatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Gatherv`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, root, info, algorithm, segment_bytes
            As of `Gatherv`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Gatherv`, before anything is sent.
        """
        return self._persist(arguments.gatherv, (sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Allgather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Allgather`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, info, algorithm, segment_bytes
            As of `Allgather`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Allgather`, before anything is sent.
        """
        return self._persist(arguments.allgather, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Allgatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Allgatherv`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, info, algorithm, segment_bytes
            As of `Allgatherv`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Allgatherv`, before anything is sent.
        """
        return self._persist(arguments.allgatherv, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Alltoall`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, info, algorithm, segment_bytes
            As of `Alltoall`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Alltoall`, before anything is sent.
        """
        return self._persist(arguments.alltoall, (sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Alltoallv_init(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Alltoallv`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, info, algorithm, segment_bytes
            As of `Alltoallv`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Alltoallv`, before anything is sent.
        """
        return self._persist(arguments.alltoallv, (sendbuf, recvbuf), info, algorithm, segment_bytes)
