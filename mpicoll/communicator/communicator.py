"""How communicators are made from others and freed, and what they tell about themselves."""

from __future__ import annotations

import atexit
from collections import deque
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpi4py import MPI

from .. import collectives, engine, select
from ..calls import (
    allowing, arguments, compare_at_exit, compare_end, explain, in_place_form, neighbor_call
)
from ..errors import ArgumentError, LaunchError, RankFailure
from ..execute import Context, list_at_exit, surroundings_of
from ..failure import all_agree, deaths, note_missing, refusal
from ..launch import check_launch
from ..select import table
from ..shared_memory import shared_array
from ..support import settings
from ..support.checks import check
from ..support.settings import ALWAYS
from ..support.stderr import warn_here
from ..watch import WATCHER
from .blocking import Blocking
from .neighboring import Neighboring
from .nonblocking import NonBlocking
from .persistent import Persistent
from .watched import Watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self

    from ..algorithms import AnyName
    from ..codes import CompressionName
    from ..calls import Explanation, NeighborCallName
    from ..collectives import CallName
    from ..support.settings import CheckMode


Made = TypeVar("Made", bound="Communicator")
#: communicators that wait to be freed, see `release`
_RELEASED: deque[Communicator] = deque()


@cache
def _compare_at_exit() -> None:
    """Once, before MPI is finalized."""
    atexit.register(compare_at_exit)


# a plan is no MPI.Prequest, see `persistent`; the site lists the methods of the last base first
class Communicator(  # pyright: ignore[reportIncompatibleMethodOverride]
    Persistent, NonBlocking, Blocking, Watched
):
    """An intracommunicator with mpicoll's collectives; all ranks of `comm` make it together.

    Everything else is mpi4py's. Signatures are mpi4py's plus two keywords: `algorithm` (a name of
    `mpicoll.list_algorithms`, or "nccl": NVIDIA's NCCL, on arrays in device memory; None: chosen)
    and `segment_bytes` (messages are cut into pieces of at most so many; 0: whole; None: chosen).
    Results are the same bits on all ranks.

    Each collective has three forms. `Allreduce` blocks. `Iallreduce` returns a request, for Wait,
    Test and MPI.Request.Waitall; its buffers must live, and must not be touched, until the request
    is complete. `Allreduce_init` returns a `Plan`, bound to its buffers, which is started any
    number of times; `info` has hints for MPI. Wrong arguments raise before anything is sent, later
    errors in Wait and Test. Ranks begin the collectives of a communicator, and make its plans, in
    the same order; they may wait in any.

    Elements of arrays without gaps, C or Fortran, go in the order of memory, as in mpi4py; those of
    strided arrays by their indices, the last one fastest. Shapes are not compared: a C and a
    Fortran array of one shape do not match.

    `check`, `timeout`, `deterministic` and `reproducible` belong to the handle: they hold for all
    wrappers of it, and for communicators that are made from it.

    Parameters
    ----------
    comm : MPI.Intracomm
        Its ranks and its handle; the wrapper frees nothing. MPI.COMM_WORLD, say.
    check : {"off", "first", "always", "digest"}, optional
        When ranks compare their calls before data moves: never, the first time that a call is met,
        each time. Where they differ, all ranks raise CollectiveMismatch. With "always" repeated
        reductions inside a node are compared by a hash in each message. Of blocking calls that are
        small enough for MPI to serve them, "always" compares one of 512, with a hash of all before
        it, and the rest when the communicator is freed. "digest", alone or as "always,digest": they
        compare results, too, where these must be equal; "digest:N": one of N. None: MPICOLL_CHECK,
        by default "first".
    timeout : float, optional
        Seconds without progress after which a collective raises CollectiveTimeout; 0: none. None:
        MPICOLL_TIMEOUT, by default none.
    deterministic : bool, optional
        Floats are only ever added in the canonical order of the ranks: the same bits whatever the
        size, the pieces, the transport or the form of the call. None: MPICOLL_DETERMINISTIC, by
        default off.
    reproducible : bool, optional
        Floats are summed in fixed point: the same bits for any number of ranks and any split of the
        contributions over them (`Contributions`). Everything else is as with `deterministic`. None:
        MPICOLL_REPRODUCIBLE, by default off.

    Raises
    ------
    ArgumentError
        `comm` is no intracommunicator, or an MPICOLL_* variable has a value that cannot be used. Of
        a call: unknown algorithm, one that cannot serve, root out of range, freed communicator;
        before anything is sent.
    BufferError
        Of a call: types, sizes, access, overlap of buffers; before anything is sent.
    LaunchError
        Several processes were started, and each is alone in its COMM_WORLD; or MPICOLL_GPU=direct,
        and MPI does not take device pointers.
    CollectiveMismatch
        Of a call: ranks do not make the same one; on all ranks.
    CollectiveTimeout
        Of a call: no progress for longer than `timeout`; the message says who waits for whom.
    MpicollError
        Of a call: an earlier one made the communicator invalid; the message says which.

    Examples
    --------
    >>> comm = mpicoll.Communicator(MPI.COMM_WORLD)
    >>> comm.Allreduce(MPI.IN_PLACE, x)
    """

    def __new__(
        cls, comm: MPI.Comm | None = None, *,
        check: CheckMode | None = None, timeout: float | None = None,
        deterministic: bool | None = None, reproducible: bool | None = None,
    ) -> Self:
        if isinstance(comm, MPI.Intercomm) and comm != MPI.COMM_NULL:
            text = "mpicoll.Communicator needs an intra-communicator: use Intercomm.Merge() first"
            raise ArgumentError(text)
        if comm == MPI.COMM_WORLD:
            check_launch()
        if cls is Communicator and isinstance(comm, MPI.Topocomm):
            # mpi4py's communicator with a topology, whose methods go with it
            kind = _KINDS.get(comm.Get_topology() if comm != MPI.COMM_NULL else MPI.UNDEFINED)
            if kind is not None:
                made = kind(
                    comm, check=check, timeout=timeout,
                    deterministic=deterministic, reproducible=reproducible,
                )
                return cast("Self", made)
        free_released()
        # not super(): Python refuses that of MPI.Cartcomm and the other topologies
        new: Self = MPI.Intracomm.__new__(cls, comm)
        if comm is not None and comm != MPI.COMM_NULL:
            options = {
                "check": check,
                "timeout": timeout,
                "deterministic": deterministic,
                "reproducible": reproducible,
            }
            # the first wrapper of a handle determines the nodes, and compares the options of ranks
            context = Context.configured(new, options, _prepare)
            # a wrong variable raises here, and on all ranks, not at the first call
            settings.check()
            select.environment_rules()
            new._context = context
            if context.check == ALWAYS:
                list_at_exit()
                _compare_at_exit()
            WATCHER.start()
            if settings.profile():
                from ..bench import profile  # late: it imports the harness of benchmarks

                profile.start()
            problem = table.problem(context.topology.library)
            if problem:
                _warn_once(f"{problem}; the default table and a probe decide instead")
            _warn_once(settings.unknown())
        return new

    # The same class again.

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """MPI's; a `Communicator`, with what was measured on this one."""
        return self._duplicate(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """MPI's; a `Communicator`, with what was measured on this one."""
        return self._duplicate(super().Dup_with_info(info))

    def Clone(self) -> Self:
        """mpi4py's `Dup` without arguments."""
        return self._duplicate(super().Clone())

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """MPI's; a `Communicator`, with what was measured on this one."""
        with Context.promising(self):
            return super().Idup(info)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        """MPI's; a `Communicator`, with what was measured on this one."""
        with Context.promising(self):
            return super().Idup_with_info(info)

    def _duplicate(self, comm: Self) -> Self:
        """Share what was measured on this communicator with its duplicate."""
        with self._context.making(comm):
            made = Context.duplicate(comm, self, self._context.channel.share(self))
        made._context = Context.of(made)
        return made

    def Split(self, color: int = 0, key: int = 0) -> Self:
        """MPI's; a `Communicator` of the ranks of the same color."""
        return self._part(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Self:
        """MPI's; a `Communicator` of the ranks that share what `split_type` names."""
        return self._part(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Self:
        """MPI's; a `Communicator` of the ranks of the group. Called by all ranks."""
        return self._part(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Self:
        """MPI's; a `Communicator` of the ranks of the group. Called by these alone."""
        comm = super().Create_group(group, tag)
        with self._context.making(comm):
            return self._plain()(Context.part(comm, self, None))

    def _part(self, comm: MPI.Comm) -> Self:
        """The same class for some of the ranks, with their nodes. Called by all ranks."""
        return self._of_kind(self._plain(), comm)

    def _of_kind(self, kind: type[Made], comm: MPI.Comm) -> Made:
        with self._context.making(comm):
            return kind(Context.part(comm, self, self._context.channel.share(self)))

    def _plain(self) -> type[Self]:
        """The class of communicators of some of the ranks, which have no topology."""
        return type(self)

    # Topologies.

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> CartCommunicator:
        """MPI's; a `Communicator` that is an MPI.Cartcomm, too."""
        return self._of_kind(CartCommunicator, super().Create_cart(dims, periods, reorder))

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> GraphCommunicator:
        """MPI's; a `Communicator` that is an MPI.Graphcomm, too."""
        return self._of_kind(GraphCommunicator, super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(
        self, sources: Sequence[int], destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None, destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL, reorder: bool = False,
    ) -> DistgraphCommunicator:
        """MPI's; a `Communicator` that is an MPI.Distgraphcomm, too."""
        weights = {}
        if sourceweights is not None:
            weights["sourceweights"] = sourceweights
        if destweights is not None:
            weights["destweights"] = destweights
        made = super().Create_dist_graph_adjacent(
            sources, destinations, info=info, reorder=reorder, **weights
        )
        return self._of_kind(DistgraphCommunicator, made)

    def Create_dist_graph(
        self, sources: Sequence[int], degrees: Sequence[int], destinations: Sequence[int],
        weights: Sequence[int] | None = None, info: MPI.Info = MPI.INFO_NULL, reorder: bool = False,
    ) -> DistgraphCommunicator:
        """MPI's; a `Communicator` that is an MPI.Distgraphcomm, too."""
        keywords = {} if weights is None else {"weights": weights}
        made = super().Create_dist_graph(
            sources, degrees, destinations, info=info, reorder=reorder, **keywords
        )
        return self._of_kind(DistgraphCommunicator, made)

    @classmethod
    def Create_from_group(cls, *arguments: Any, **keywords: Any) -> Self:
        """MPI's; a `Communicator` of the ranks of the group, made without a parent."""
        return cls(super().Create_from_group(*arguments, **keywords))

    def Free(self) -> None:
        """MPI's; waits for calls in flight before."""
        self._drain()
        super().Free()

    def Disconnect(self) -> None:
        """MPI's; waits for calls in flight before."""
        self._drain()
        super().Disconnect()

    def _drain(self) -> None:
        if self:
            compare_end(self._context)
            self._context.drain()

    # Ranks that died.

    def shrink(self) -> Self:
        """A communicator of the surviving ranks, in their order. Collective over those.

        It works on a revoked communicator, too. Calls under way on this one never end; their memory
        is kept, so that nothing of it is overwritten later. Communicators that were made from this
        one are made again from the new one. `Free` this one when nothing of it is needed.

        Returns
        -------
        Communicator
            With the same `check` and `timeout`; a duplicate where no rank has died.

        Raises
        ------
        LaunchError
            Lost ranks cannot be survived here: another MPI than Open MPI, or no
            ``mpirun --with-ft ulfm``. Before anything is sent.

        Cost
        ----
        MPI_Comm_shrink, a duplicate, and a few small messages: milliseconds. Again from the start
        where a rank dies in it.

        Source
        ------
        MPI 5.0 draft, chapter "Process Fault Tolerance": MPI_Comm_revoke, MPI_Comm_shrink,
        MPI_Comm_agree.

        Examples
        --------
        >>> try:
        ...     comm.Allreduce(MPI.IN_PLACE, x)
        ... except mpicoll.RankFailure as failure:
        ...     print(failure.ranks)
        ...     comm = comm.shrink()
        """
        if problem := refusal():
            raise LaunchError(f"shrink: lost ranks cannot be survived here. {problem}")
        while True:
            living = MPI.Intracomm(MPI.Comm.Shrink(self))
            note_missing(living, self)
            made: Self | None = None
            # raised where another rank dies, or where another rank has seen that
            with suppress(RankFailure), self._context.making(living):
                made = self._plain()(Context.part(living, self, None))
            if all_agree(living, made is not None) and made is not None:
                return made

    # Memory that ranks of a node share.

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """An array that other ranks of the node read without a copy, when schedules send it. Local.

        Otherwise it is like that of `numpy.empty`, also in calls on other communicators; where
        ranks of a node cannot read each other's memory (`mpicoll info` says why) it is just that.
        Its memory is freed with its last reference.

        Parameters
        ----------
        shape : int or sequence of int
            Its lengths. Ranks may give different ones.
        dtype : dtype, default float
            Of its elements; no Python objects.

        Returns
        -------
        numpy.ndarray
            In C order, its contents undefined.

        Raises
        ------
        ArgumentError
            Shape or dtype make no sense, more bytes than the node's memory has, or the communicator
            was freed.

        Cost
        ----
        Nothing of it is copied in order to be sent inside the node: docs/one-machine.md has the
        times. On the first touch the system clears its pages: make such arrays once, and use them
        again.

        Examples
        --------
        >>> gradient = comm.empty(1_000_000, "f4")
        """
        if not self:
            raise ArgumentError("empty on a communicator that was freed")
        return shared_array(shape, dtype, shared=self._context.links is not None)

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """`empty`, filled with zeros."""
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    @property
    def deterministic(self) -> bool:
        """Whether floats are only added in the canonical order; so they are if `reproducible`."""
        return self._context.deterministic or self._context.reproducible

    @property
    def reproducible(self) -> bool:
        """Whether floats are summed in fixed point."""
        return self._context.reproducible

    # Counting and explaining.

    @property
    def sent(self) -> tuple[int, int]:
        """(messages, bytes) that this rank has sent in schedules; a send counts when it starts."""
        return self._context.sent

    def explain(
        self, collective: CallName, sendbuf: Any = None, recvbuf: Any = None, *,
        op: MPI.Op = MPI.SUM, root: int = 0,
        algorithm: AnyName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Explanation:
        """What a call would do and why; nothing is sent and nothing is changed.

        Parameters
        ----------
        collective : str
            `allreduce`, say; or `iallreduce` for the non-blocking call.
        sendbuf, recvbuf : buffer
            As in the call (bcast: the buffer; barrier: none). One array is enough: it then stands
            for the input.
        op, root, algorithm, segment_bytes, compression
            As in the call.

        Returns
        -------
        Explanation
            algorithm, size, nbytes, rounds, messages, bytes_sent (by this rank), lower_bound
            (bytes), predicted_seconds, segment_bytes and reason; of a compressed call also
            compression, quantisations and expected_error; printable. None where this rank cannot
            know, or nothing was measured.

        Raises
        ------
        ArgumentError, BufferError
            What the call would raise.

        Examples
        --------
        >>> print(comm.explain("allreduce", x))
        """
        name, nonblocking = collectives.of_call(collective)
        if recvbuf is None:
            is_root = self.Get_rank() == root
            sendbuf, recvbuf = in_place_form(name, sendbuf, is_root, self.Get_size())
        args = {
            "bcast": (sendbuf, root),
            "reduce": (sendbuf, recvbuf, op, root),
            "allreduce": (sendbuf, recvbuf, op),
            "reduce_scatter": (sendbuf, recvbuf, op),
            "allgather": (sendbuf, recvbuf),
            "alltoall": (sendbuf, recvbuf),
            "scatter": (sendbuf, recvbuf, root),
            "gather": (sendbuf, recvbuf, root),
            "scan": (sendbuf, recvbuf, op),
            "exscan": (sendbuf, recvbuf, op),
            "barrier": (),
        }[name]
        method: str = "reduce_scatter_block" if name == "reduce_scatter" else name
        if collective.lower().endswith("alltoallw"):
            method = "alltoallw"
        call = allowing(getattr(arguments, method), compression)(self, *args)
        call.nonblocking = nonblocking
        return explain(call, algorithm, segment_bytes)


class Topological(  # pyright: ignore[reportIncompatibleMethodOverride]
    Neighboring, Communicator
):
    """A `Communicator` of ranks that have neighbours."""

    def __new__(cls, comm: MPI.Comm | None = None, **options: Any) -> Self:
        new = super().__new__(cls, comm, **options)
        if comm is not None and comm != MPI.COMM_NULL:
            surroundings_of(new)
        return new

    def _plain(self) -> type[Any]:
        return Communicator

    def explain(
        self, collective: CallName | NeighborCallName, sendbuf: Any = None, recvbuf: Any = None, *,
        op: MPI.Op = MPI.SUM, root: int = 0,
        algorithm: AnyName | None = None, segment_bytes: int | None = None,
        compression: CompressionName | None = None,
    ) -> Explanation:
        """`Communicator.explain`, also of collectives of neighbours, which need both buffers."""
        name = collective.lower().removesuffix("_init")
        nonblocking = name.startswith("ineighbor_")
        parse = neighbor_call.PARSERS.get(name.removeprefix("i") if nonblocking else name)
        if parse is None:
            return super().explain(
                cast("CallName", collective), sendbuf, recvbuf, op=op, root=root,
                algorithm=algorithm, segment_bytes=segment_bytes, compression=compression,
            )
        call = parse(self, sendbuf, recvbuf)
        call.nonblocking = nonblocking
        return explain(call, algorithm, segment_bytes)


# as of Communicator: plans of neighbours are no MPI.Prequest
class CartCommunicator(  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]
    Topological, MPI.Cartcomm
):
    """A `Communicator` of ranks on a grid."""

    def Sub(self, remain_dims: Sequence[bool]) -> CartCommunicator:
        """MPI's; a `Communicator` of the ranks of a part of the grid."""
        return self._of_kind(CartCommunicator, super().Sub(remain_dims))


class GraphCommunicator(  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]
    Topological, MPI.Graphcomm
):
    """A `Communicator` of ranks in a graph."""


class DistgraphCommunicator(  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]  # noqa: E501
    Topological, MPI.Distgraphcomm
):
    """A `Communicator` of ranks in a graph of which each knows a part."""


#: by what MPI says of a communicator's topology
_KINDS: dict[int, type[Communicator]] = {
    MPI.CART: CartCommunicator,
    MPI.GRAPH: GraphCommunicator,
    MPI.DIST_GRAPH: DistgraphCommunicator,
}


def release(comm: Communicator) -> None:
    """Free a communicator of which no rank makes a call any more, when the next one is made. Local.

    Ranks may do so at different times, as for objects that are garbage: unlike in `Free` nothing is
    compared, and no rank waits for another one. What is given up stays with MPI. Not at once: a
    finalizer may run in the middle of mpi4py's code, which holds a lock that its `Free` takes.
    """
    if comm:
        comm._context.released = True
        _RELEASED.append(comm)


def free_released() -> None:
    """Free the communicators that were released."""
    while _RELEASED:
        with suppress(IndexError):  # another thread was faster
            comm = _RELEASED.popleft()
            if not MPI.Is_finalized() and comm and not comm._context.broken and not deaths():
                MPI.Intracomm.Free(comm)


atexit.register(free_released)


def wrapped(comm: MPI.Intracomm) -> Communicator:
    """`comm` where it is a Communicator, else a new one of it. ArgumentError where it cannot be."""
    # an Intercomm has an error of its own
    good = isinstance(comm, MPI.Comm) and comm != MPI.COMM_NULL
    check("comm", comm, good, "a communicator, such as MPI.COMM_WORLD")
    return comm if isinstance(comm, Communicator) else Communicator(comm)


def _prepare() -> None:
    """What may fail on a single rank, and is then an error on all."""
    select.read_tables()
    engine.require()


@cache
def _warn_once(problem: str) -> None:
    if problem and MPI.COMM_WORLD.Get_rank() == 0:
        warn_here(f"mpicoll: {problem}")
