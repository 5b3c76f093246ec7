"""The blocking collectives.

m: bytes of the whole vector, p: ranks. Costs are those of the algorithms that may be chosen; bytes
are those that a rank sends. MPI itself serves small calls. `Communicator.explain` says what serves
a call; the docstrings in `mpicoll.algorithms` give the source of each algorithm.
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


class Blocking(Base):
    """mpi4py's signatures; `algorithm` and `segment_bytes` are keywords beside them."""

    def Bcast(
        self, buf: BufSpec, root: int = 0, *,
        algorithm: BcastName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
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
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `binomial`: ceil(log2 p) rounds; in each, every rank that has the m bytes sends them on.
        `scatter_allgather`: 2 ceil(log2 p) rounds, about 2 m per rank. `pipeline`, `circulant`:
        about m per rank.

        Examples
        --------
        >>> comm.Bcast(weights, root=0)
        """
        if compression is None and self._passes_bcast(buf, root, algorithm, segment_bytes):
            return
        self._serve(allowing(arguments.bcast, compression), (buf, root), algorithm, segment_bytes)

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
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        (p-1)/p m leave the root. `linear`: p-1 rounds; `binomial`: ceil(log2 p), through ranks in
        between.
        """
        if self._passes_scatter(sendbuf, recvbuf, root, algorithm, segment_bytes):
            return
        self._serve(arguments.scatter, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Scatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *,
        algorithm: ScatterName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets block r of the root's vector, of any size; only the root needs to know sizes.

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
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        m without its own block leave the root. `linear`, the default: p-1 rounds. `binomial`:
        ceil(log2 p), and as many before for the counts.

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
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        (p-1)/p m reach the root. `linear`: p-1 rounds; `binomial`: ceil(log2 p), through ranks in
        between.
        """
        if self._passes_gather(sendbuf, recvbuf, root, algorithm, segment_bytes):
            return
        self._serve(arguments.gather, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *,
        algorithm: GatherName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """The root gets the blocks of all ranks, of any sizes; only the root needs to know them.

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
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        m without its own block reach the root. `linear`, the default: p-1 rounds. `binomial`:
        ceil(log2 p), and as many before for the counts.
        """
        self._serve(arguments.gatherv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Allgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
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
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        (p-1)/p m per rank. `ring`: p-1 rounds, between neighbours; `circulant`, `bruck`:
        ceil(log2 p).

        Examples
        --------
        >>> comm.Allgather(mine, everything)  # everything.shape == (comm.Get_size(), *mine.shape)
        """
        if compression is None and self._passes_allgather(
            sendbuf, recvbuf, algorithm, segment_bytes
        ):
            return
        parse = allowing(arguments.allgather, compression)
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Allgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *,
        algorithm: AllgatherName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
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
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        m without the largest block, or less, per rank. `ring`: p-1 rounds; `circulant`, `bruck`:
        ceil(log2 p).
        """
        parse = allowing(arguments.allgatherv, compression)
        self._serve(parse, (sendbuf, recvbuf), algorithm, segment_bytes)

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
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `pairwise`: p-1 rounds, (p-1)/p m per rank. `bruck`: ceil(log2 p) rounds of about m/2,
        packed before each. In place schedules take as much memory again, for the result.

        Examples
        --------
        >>> comm.Alltoall(rows, columns)  # rows[r] goes to rank r, columns[r] comes from rank r
        """
        if self._passes_alltoall(sendbuf, recvbuf, algorithm, segment_bytes):
            return
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
            One of `mpicoll.list_algorithms("alltoall")`, but for `bruck`. None: MPI's own call,
            unless MPICOLL_ALGORITHM names another for all sizes.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `pairwise`: p-1 rounds; a rank sends its blocks, but for its own. In place as `Alltoall`.
        """
        self._serve(arguments.alltoallv, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Alltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *,
        algorithm: AlltoallName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Every rank has a block for each rank, and gets one from each, of any datatypes.

        Parameters
        ----------
        sendbuf : [buf, counts, displs, types] or MPI.IN_PLACE
            A block for each rank, of its own datatype; displacements are in bytes. IN_PLACE: they
            lie in `recvbuf`.
        recvbuf : [buf, counts, displs, types]
            Room for the block from each rank, of the bytes that it has there.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("alltoall")` that takes blocks of any sizes. None: as
            for `Alltoallv`.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Items or sizes are wrong, blocks reach beyond a buffer, or blocks of the receive buffer
            overlap; before anything is sent.

        Cost
        ----
        As `Alltoallv`, and a copy of what does not lie in one piece before and after it.

        Examples
        --------
        >>> comm.Alltoallw([a, ones, zeros, columns], [b, ones, zeros, rows])
        """
        self._serve(arguments.alltoallw, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Reduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM, root: int = 0, *,
        algorithm: ReduceName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> None:
        """The root gets the elementwise `op` over the vectors of all ranks.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector, or several (`Contributions`). IN_PLACE, at the root only: it lies in
            `recvbuf`.
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
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or `root` is no rank; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `binomial`: ceil(log2 p) rounds, m sent by each rank. `reduce_scatter_gather`: twice the
        rounds, at most about 2 m, and only (p-1)/p m to be reduced per rank. `circulant`: in n
        segments n - 1 + ceil(log2 p) rounds of m/n, for large vectors. `pipeline`: m per rank, for
        the largest.
        """
        if compression is None and self._passes_reduce(
            sendbuf, recvbuf, op, root, algorithm, segment_bytes
        ):
            return
        parse = allowing(arguments.reduce, compression)
        self._serve(parse, (sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Allreduce(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: AllreduceName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> None:
        """Every rank gets the elementwise `op` over all vectors, the same bits on every rank.

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
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
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
        if compression is None and self._passes_allreduce(
            sendbuf, recvbuf, op, algorithm, segment_bytes
        ):
            return
        parse = allowing(arguments.allreduce, compression)
        self._serve(parse, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace | Contributions, recvbuf: BufSpec | BufSpecB,
        op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> None:
        """Rank r gets block r, of p equal blocks, of the elementwise `op` over all vectors.

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
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        (p-1)/p m sent and reduced per rank. `ring`: p-1 rounds; `circulant`: ceil(log2 p).

        Examples
        --------
        >>> comm.Reduce_scatter_block(vector, mine)  # vector.size == mine.size * comm.Get_size()
        """
        if compression is None and self._passes_reduce_scatter_block(
            sendbuf, recvbuf, op, algorithm, segment_bytes
        ):
            return
        parse = allowing(arguments.reduce_scatter_block, compression)
        self._serve(parse, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Reduce_scatter(
        self, sendbuf: BufSpec | InPlace | Contributions, recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM, *,
        algorithm: ReduceScatterName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> None:
        """Rank r gets block r, `recvcounts[r]` elements, of the elementwise `op` over all vectors.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector: a block for each rank. IN_PLACE: it lies in `recvbuf`.
        recvbuf : buffer
            Gets `recvcounts[rank]` elements, at its beginning; of the type of the vector.
        recvcounts : sequence of int, optional
            Elements of each rank's block, the same on all ranks. None: each rank gives its own.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order where it does not commute.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("reduce_scatter")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.
        compression : str, optional
            `"int8"`, `"int4"`, `"bfloat16"` or `"float16"`: messages between nodes may have
            such codes of the elements, see docs/compression.md. None: nothing is compressed.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        m without one block sent per rank. `ring`: p-1 rounds; `circulant`: ceil(log2 p).
        """
        parse = allowing(arguments.reduce_scatter, compression)
        self._serve(parse, (sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)

    def Scan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: ScanName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets the elementwise `op` over the vectors of ranks 0 to r.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector. IN_PLACE: it lies in `recvbuf`.
        recvbuf : buffer
            Gets the result: a vector of the same shape and type.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("scan")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `recursive_doubling`: ceil(log2 p) rounds of m. `pipeline`: in n segments n + p - 2 rounds
        of m/n, for large vectors. `hierarchical`: ceil(log2 N) rounds between N nodes.

        Examples
        --------
        >>> comm.Scan(counts, counts_so_far)
        """
        if self._passes_scan(sendbuf, recvbuf, op, algorithm, segment_bytes):
            return
        self._serve(arguments.scan, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Exscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM, *,
        algorithm: ExscanName | None = None, segment_bytes: int | None = None,
    ) -> None:
        """Rank r gets the elementwise `op` over the vectors of ranks 0 to r - 1; rank 0 nothing.

        Parameters
        ----------
        sendbuf : buffer or MPI.IN_PLACE
            This rank's vector. IN_PLACE: it lies in `recvbuf`.
        recvbuf : buffer
            Gets the result: a vector of the same shape and type. Rank 0's
            is left as it is.
        op : MPI.Op, default MPI.SUM
            Elementwise; operands stay in rank order.
        algorithm : str, optional
            One of `mpicoll.list_algorithms("exscan")`. None: chosen by size and network.
        segment_bytes : int, optional
            Cut messages into pieces of at most so many bytes; 0: whole. None: chosen.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown or cannot serve the call, or the communicator was freed; before
            anything is sent.
        BufferError
            Type, size, access or overlap of the buffers is wrong; before anything is sent.

        Cost
        ----
        `two_phase`: ceil(log2 p) rounds of m. `pipeline`: in n segments n + p - 2 rounds of m/n,
        for large vectors. `hierarchical`: ceil(log2 N) rounds between N nodes.

        Examples
        --------
        >>> comm.Exscan(own_count, offset)
        """
        if self._passes_exscan(sendbuf, recvbuf, op, algorithm, segment_bytes):
            return
        self._serve(arguments.exscan, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Barrier(
        self, *, algorithm: BarrierName | None = None, segment_bytes: int | None = None
    ) -> None:
        """No rank returns before all have called it.

        Parameters
        ----------
        algorithm : str, optional
            One of `mpicoll.list_algorithms("barrier")`. None: chosen by ranks and network.
        segment_bytes : int, optional
            Without effect; as in the other collectives.

        Raises
        ------
        ArgumentError
            `algorithm` is unknown, or the communicator was freed; before anything is sent.

        Cost
        ----
        `dissemination`: ceil(log2 p) rounds. `tree`: twice as many, and 2 (p-1) messages in all.
        """
        if self._passes_barrier(algorithm, segment_bytes):
            return
        self._serve(arguments.barrier, (), algorithm, segment_bytes)

    def barrier(self) -> None:
        """`Barrier`, in the spelling of mpi4py's methods for objects: both meet on all ranks."""
        self.Barrier()
