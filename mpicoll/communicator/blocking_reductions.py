"""The blocking collectives that compute: reduce, allreduce, reduce_scatter.

m: bytes of the whole vector, p: ranks. Costs are those of the algorithms that may be chosen; bytes are those
that a rank sends. Small calls are MPI's own; `Communicator.explain` says what serves a call, and the docstrings in
`mpicoll.algorithms` where each algorithm comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..calls import arguments
from .base import REFUSALS, Base

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py.typing import BufSpec, BufSpecB, InPlace

    from ..algorithms import AllreduceName, ReduceName, ReduceScatterName
    from ..buffers import Contributions

_ALLREDUCE = MPI.Intracomm.Allreduce
_REDUCE_SCATTER_BLOCK = MPI.Intracomm.Reduce_scatter_block


class BlockingReductions(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Reduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec | None, op: MPI.Op = MPI.SUM, root: int = 0, *,
        algorithm: ReduceName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """The root gets the elementwise `op` over the vectors of all ranks.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector, or several (`Contributions`). IN_PLACE, at the root only: it lies in `recvbuf`.
        recvbuf : buffer or None
            At the root a vector of the same shape and type; not looked at elsewhere.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order where it does not commute.
        root : int, default 0
            The rank that has the whole result at the end.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("reduce")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `binomial`: ceil(log2 p) rounds, m sent by each rank. `reduce_scatter_gather`: twice the rounds, at most
        about 2 m, and only (p-1)/p m to be reduced per rank. `circulant`: in n segments n - 1 + ceil(log2 p) rounds of
        m/n, for large vectors. `pipeline`: m per rank, for the largest.
        """
        self._serve(arguments.reduce, (sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Allreduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: AllreduceName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank gets the elementwise `op` over the vectors of all ranks, the same bits everywhere.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector, or several (`Contributions`). IN_PLACE: it lies in `recvbuf`.
        recvbuf : buffer
            Gets the result: a vector of the same shape and type.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order where it does not commute.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("allreduce")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        At least 2 (p-1)/p m per rank: `ring` in 2 (p-1) rounds, `circulant` in 2 ceil(log2 p).
        `recursive_doubling`: about ceil(log2 p) rounds of m.

        Examples
        --------
        >>> comm.Allreduce(MPI.IN_PLACE, gradient)
        >>> comm.Allreduce(x, y, op=MPI.MAX, algorithm="ring", segment_bytes=1 << 20)
        """
        if algorithm is None and segment_bytes is None and self._small_allreduce(recvbuf, sendbuf, op):
            try:
                return _ALLREDUCE(self, sendbuf, recvbuf, op)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.allreduce, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace | Contributions, recvbuf: BufSpec | BufSpecB, op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets block r, of p equal blocks, of the elementwise `op` over the vectors of all ranks.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector: p equal blocks. IN_PLACE: it lies in `recvbuf`.
        recvbuf : buffer
            Gets one block, at its beginning; of the type of the vector.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order where it does not commute.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("reduce_scatter")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        (p-1)/p m sent and reduced per rank. `ring`: p-1 rounds; `circulant`: ceil(log2 p).

        Examples
        --------
        >>> comm.Reduce_scatter_block(vector, mine)  # vector.size == mine.size * comm.Get_size()
        """
        if algorithm is None and segment_bytes is None and self._small_reduce_scatter(sendbuf, recvbuf, op):
            try:
                return _REDUCE_SCATTER_BLOCK(self, sendbuf, recvbuf, op)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.reduce_scatter_block, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Reduce_scatter(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets block r, of `recvcounts[r]` elements, of the elementwise `op` over the vectors of all ranks.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector: a block for each rank. IN_PLACE: it lies in `recvbuf`.
        recvbuf : buffer
            Gets `recvcounts[rank]` elements, at its beginning; of the type of the vector.
        recvcounts : sequence of int, optional
            Elements of each rank's block, the same on all ranks. None: each rank says how many it gets.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order where it does not commute.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("reduce_scatter")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        m without one block sent per rank. `ring`: p-1 rounds; `circulant`: ceil(log2 p).
        """
        self._serve(arguments.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)
