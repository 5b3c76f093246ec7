"""The blocking collectives that move data between all ranks: allgather, alltoall.

m: bytes of a rank's whole vector, p: ranks. Costs are those of the algorithms that may be chosen; bytes are those
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

    from ..algorithms import AllgatherName, AlltoallName

_ALLGATHER = MPI.Intracomm.Allgather
_ALLTOALL = MPI.Intracomm.Alltoall


class BlockingExchanges(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Allgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank gets the equal blocks of all ranks, in rank order.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's block. IN_PLACE: it lies in its place in `recvbuf`.
        recvbuf : buffer
            Gets p equal blocks, one after the other.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("allgather")`. None: chosen by size and network.
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
        (p-1)/p m per rank. `ring`: p-1 rounds, between neighbours; `circulant`, `bruck`: ceil(log2 p).

        Examples
        --------
        >>> comm.Allgather(mine, everything)  # everything.shape == (comm.Get_size(), *mine.shape)
        """
        if algorithm is None and segment_bytes is None and self._small_allgather(recvbuf, sendbuf, None):
            try:
                return _ALLGATHER(self, sendbuf, recvbuf)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.allgather, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Allgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank gets the blocks of all ranks, of any sizes.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's block, of any size. IN_PLACE: it lies in its place in `recvbuf`.
        recvbuf : buffer or [buf, counts, displs, type]
            Room for each rank's block, anywhere; counts and type are the same on all ranks.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("allgather")`. None: chosen by size and network.
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
        m without the largest block, or less, per rank. `ring`: p-1 rounds; `circulant`, `bruck`: ceil(log2 p).
        """
        self._serve(arguments.allgatherv, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Alltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank has a block for each rank, and gets one from each; all blocks have one size.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            p equal blocks, the one for rank r in place r. IN_PLACE: they lie in `recvbuf`.
        recvbuf : buffer
            Gets p equal blocks, the one from rank r in place r.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("alltoall")`. None: chosen by size and network.
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
        `pairwise`: p-1 rounds, (p-1)/p m per rank. `bruck`: ceil(log2 p) rounds of about m/2, packed before each. In place
        schedules take as much memory again, for the result.

        Examples
        --------
        >>> comm.Alltoall(rows, columns)  # of shape (comm.Get_size(), …): rows[r] goes to rank r, columns[r] is from there
        """
        if algorithm is None and segment_bytes is None and self._small_alltoall(recvbuf, sendbuf, None):
            try:
                return _ALLTOALL(self, sendbuf, recvbuf)
            except REFUSALS as error:
                self._raise_unless_refused(error)
        self._serve(arguments.alltoall, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Alltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank has a block for each rank, and gets one from each; blocks have any sizes.

        Parameters
        ----------
        sendbuf : buffer, [buf, counts, displs, type] or MPI.IN_PLACE
            A block for each rank, of any size and anywhere. IN_PLACE: they lie in `recvbuf`.
        recvbuf : buffer or [buf, counts, displs, type]
            Room for the block from each rank, of the size that it has there, anywhere.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("alltoall")`, but for `bruck`. None: MPI's own call, unless MPICOLL_ALGORITHM
            names another for all sizes.
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
        `pairwise`: p-1 rounds; a rank sends its blocks, but for its own. In place as `Alltoall`.
        """
        self._serve(arguments.alltoallv, (sendbuf, recvbuf), algorithm, segment_bytes)
