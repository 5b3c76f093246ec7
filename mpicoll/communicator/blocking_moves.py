"""The blocking collectives that move data between a root and all: broadcast, scatter, gather.

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
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

    from ..algorithms import BcastName, GatherName, ScatterName

_BCAST = MPI.Intracomm.Bcast
_GATHER = MPI.Intracomm.Gather
_SCATTER = MPI.Intracomm.Scatter
_IN_PLACE = MPI.IN_PLACE


class BlockingMoves(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Bcast(
        self, buf: BufSpec, root: int = 0, *,
        algorithm: BcastName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank gets the root's vector.

        Parameters
        ----------
        buf : buffer
            The vector, of the same bytes on every rank. Read at the root, written elsewhere.
        root : int, default 0
            The rank that has the whole vector at the start.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("bcast")`. None: chosen by size and network.
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
        `binomial`: ceil(log2 p) rounds, in each of which whoever has the m bytes sends them on.
        `scatter_allgather`: 2 ceil(log2 p) rounds, about 2 m per rank. `pipeline`, `circulant`: about m per rank.

        Examples
        --------
        >>> comm.Bcast(weights, root=0)
        """
        if algorithm is None and segment_bytes is None and self._small_bcast(buf, _IN_PLACE, root):
            try:
                return _BCAST(self, buf, root)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.bcast, (buf, root), algorithm, segment_bytes)

    def Scatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets block r of the root's vector, which is p equal blocks.

        Parameters
        ----------
        sendbuf : buffer or None
            At the root p equal blocks, one after the other; not looked at elsewhere.
        recvbuf : buffer or MPI.IN_PLACE
            Gets one block. IN_PLACE, at the root only: its block stays in `sendbuf`.
        root : int, default 0
            The rank that has the whole vector at the start.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("scatter")`. None: chosen by size and network.
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
        (p-1)/p m leave the root. `linear`: p-1 rounds; `binomial`: ceil(log2 p), through ranks in between.
        """
        if algorithm is None and segment_bytes is None and self._small_scatter(sendbuf, recvbuf, root):
            try:
                return _SCATTER(self, sendbuf, recvbuf, root)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.scatter, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Scatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets block r of the root's vector; blocks have any sizes, which only the root needs to know.

        Parameters
        ----------
        sendbuf : buffer, [buf, counts, displs, type] or None
            At the root a block for each rank, of any size and anywhere; not looked at elsewhere.
        recvbuf : buffer or MPI.IN_PLACE
            Gets this rank's block, of its size. IN_PLACE, at the root only: it stays in `sendbuf`.
        root : int, default 0
            The rank that has the whole vector at the start.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("scatter")`. None: chosen by size and network.
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
        m without its own block leave the root. `linear`, the default: p-1 rounds. `binomial`: ceil(log2 p), and
        as many before for the counts.

        Examples
        --------
        >>> comm.Scatterv([rows, counts, displs, MPI.DOUBLE], mine)
        """
        self._serve(arguments.scatterv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """The root gets the equal blocks of all ranks, in rank order.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's block. IN_PLACE, at the root only: it lies in its place in `recvbuf`.
        recvbuf : buffer or None
            At the root p equal blocks, one after the other; not looked at elsewhere.
        root : int, default 0
            The rank that has the whole vector at the end.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("gather")`. None: chosen by size and network.
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
        (p-1)/p m reach the root. `linear`: p-1 rounds; `binomial`: ceil(log2 p), through ranks in between.
        """
        if algorithm is None and segment_bytes is None and self._small_gather(recvbuf, sendbuf, root):
            try:
                return _GATHER(self, sendbuf, recvbuf, root)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.gather, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """The root gets the blocks of all ranks; they have any sizes, which only the root needs to know.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's block, of any size. IN_PLACE, at the root only: it lies in its place.
        recvbuf : buffer, [buf, counts, displs, type] or None
            At the root room for each rank's block, anywhere; not looked at elsewhere.
        root : int, default 0
            The rank that has the whole vector at the end.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("gather")`. None: chosen by size and network.
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
        m without its own block reach the root. `linear`, the default: p-1 rounds. `binomial`: ceil(log2 p), and
        as many before for the counts.
        """
        self._serve(arguments.gatherv, (sendbuf, recvbuf, root), algorithm, segment_bytes)
