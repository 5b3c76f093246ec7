"""The collectives that compute, as plans: bound to their buffers once, then started any number of times.

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
    from collections.abc import Sequence

    from mpi4py.typing import BufSpec, BufSpecB, InPlace

    from ..algorithms import AllreduceName, ReduceName, ReduceScatterName
    from ..buffers import Contributions
    from .handles import Plan


class PersistentReductions(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Reduce_init(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM, root: int = 0,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ReduceName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Reduce`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, op, root, info, algorithm, segment_bytes
            As of `Reduce`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Reduce`, before anything is sent.
        """
        return self._persist(arguments.reduce, (sendbuf, recvbuf, op, root), info, algorithm, segment_bytes)

    def Allreduce_init(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: AllreduceName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Allreduce`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, op, info, algorithm, segment_bytes
            As of `Allreduce`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Allreduce`, before anything is sent.
        """
        return self._persist(arguments.allreduce, (sendbuf, recvbuf, op), info, algorithm, segment_bytes)

    def Reduce_scatter_block_init(
        self, sendbuf: BufSpecB | InPlace | Contributions, recvbuf: BufSpec | BufSpecB, op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Reduce_scatter_block`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, op, info, algorithm, segment_bytes
            As of `Reduce_scatter_block`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Reduce_scatter_block`, before anything is sent.
        """
        return self._persist(arguments.reduce_scatter_block, (sendbuf, recvbuf, op), info, algorithm, segment_bytes)

    def Reduce_scatter_init(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
    ) -> Plan:
        """A plan of `Reduce_scatter`, to be started any number of times.

        Parameters
        ----------
        sendbuf, recvbuf, recvcounts, op, info, algorithm, segment_bytes
            As of `Reduce_scatter`; `info`: MPI's hints. The buffers are read at Start and written until Wait.

        Returns
        -------
        Plan
            Start(), then Wait() or Test(), any number of times; Free() at the end.

        Raises
        ------
        ArgumentError, BufferError
            As `Reduce_scatter`, before anything is sent.
        """
        return self._persist(arguments.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), info, algorithm, segment_bytes)
