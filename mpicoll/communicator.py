"""`Communicator`: an MPI.Intracomm whose collectives are served by schedules or by MPI, whichever is chosen.

May import: errors, support, collectives, execute, select, calls, launch.
"""

import sys
import warnings
from functools import cache, cached_property

import numpy as np
from mpi4py import MPI

from . import collectives, select
from .calls import arguments, begin, explain, persist, repeated, run
from .errors import ArgumentError
from .execute import Context
from .launch import check_launch
from .select import table
from .support import settings

_IN_PLACE, _ndarray = MPI.IN_PLACE, np.ndarray
_ALLREDUCE, _BCAST, _ALLGATHER = MPI.Intracomm.Allreduce, MPI.Intracomm.Bcast, MPI.Intracomm.Allgather
_REDUCE_SCATTER = MPI.Intracomm.Reduce_scatter_block
_REFUSALS = ValueError, TypeError, KeyError, BufferError, MPI.Exception
_REFUSED = {MPI.ERR_OP, MPI.ERR_TYPE, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_ARG, MPI.ERR_ROOT}


class Communicator(MPI.Intracomm):
    """An intracommunicator with mpicoll's collectives; everything else is mpi4py's. Made by all ranks of `comm` together.

    Signatures are mpi4py's plus two keywords: `algorithm` (a word of `mpicoll.list_algorithms`, None: chosen) and
    `segment_bytes` (messages are cut into pieces of at most so many; 0: whole; None: chosen).
    Results are the same bits on all ranks.

    Raises ArgumentError (unknown algorithm, one that cannot serve, root out of range, freed communicator) and
    BufferError (types, sizes, access, overlap of buffers), both before anything is sent; LaunchError where several
    processes were started and each is alone in its COMM_WORLD.
    """

    def __new__(cls, comm=None):
        if isinstance(comm, MPI.Intercomm) and comm != MPI.COMM_NULL:
            raise ArgumentError("mpicoll.Communicator needs an intra-communicator: use Intercomm.Merge() first")
        if comm == MPI.COMM_WORLD:
            check_launch()
        new = super().__new__(cls, comm)
        if comm is not None and comm != MPI.COMM_NULL:
            topology = Context.of(new).topology  # the first wrapper of a handle finds the nodes, and ranks that disagree
            settings.check()  # a bad value is an error here, and on all ranks, not at the first call
            select.environment_rules()
            _warn_once(table.problem(topology.library))
        return new

    # The same class again.

    def Dup(self, info=None):
        return Context.duplicate(super().Dup(info), self)

    def Dup_with_info(self, info):
        return Context.duplicate(super().Dup_with_info(info), self)

    def Clone(self):
        return Context.duplicate(super().Clone(), self)

    def Split(self, color=0, key=0):
        return type(self)(Context.derive(super().Split(color, key), self))

    def Split_type(self, split_type, key=0, info=MPI.INFO_NULL):
        return type(self)(Context.derive(super().Split_type(split_type, key, info), self))

    def Create(self, group):
        return type(self)(Context.derive(super().Create(group), self))

    def Create_group(self, group, tag=0):
        return type(self)(Context.derive(super().Create_group(group, tag), self))

    @classmethod
    def Create_from_group(cls, *arguments, **keywords):
        return cls(super().Create_from_group(*arguments, **keywords))

    def Free(self):
        """MPI's; what is in flight comes to its end before."""
        if self:
            self._context.drain()
        super().Free()

    def Disconnect(self):
        """MPI's; what is in flight comes to its end before."""
        if self:
            self._context.drain()
        super().Disconnect()

    # Counting and explaining.

    @property
    def sent(self):
        """(messages, bytes) this rank has sent in schedules so far, counted where the sends are started."""
        return self._context.sent

    def explain(self, collective, sendbuf, recvbuf=None, *, op=MPI.SUM, root=0, algorithm=None, segment_bytes=None):
        """What a call would do and why: algorithm, rounds, messages, bytes sent by this rank, lower bound, reason.

        collective: `allreduce`, or `iallreduce` for the non-blocking call. sendbuf, recvbuf: as in the call (bcast: the
        buffer); one array is enough, it then stands for the input. Nothing is sent and nothing is changed. Raises what the
        call would raise.
        """
        name = collectives.find(collective.removeprefix("i")).name
        if recvbuf is None:
            sendbuf, recvbuf = _in_place_form(name, sendbuf, self.Get_rank() == root, self.Get_size())
        given = {"bcast": (sendbuf, root), "reduce": (sendbuf, recvbuf, op, root), "allreduce": (sendbuf, recvbuf, op),
                 "reduce_scatter": (sendbuf, recvbuf, op), "allgather": (sendbuf, recvbuf),
                 "scatter": (sendbuf, recvbuf, root), "gather": (sendbuf, recvbuf, root)}[name]  # fmt: skip
        understand = arguments.reduce_scatter_block if name == "reduce_scatter" else getattr(arguments, name)
        call = understand(self, *given)
        call.nonblocking = collective.startswith("i")
        return explain(call, algorithm, segment_bytes)

    def _serve(self, understand, given, algorithm, segment_bytes):
        """Serve a blocking call; one that was served before on the same memory is not looked at again."""
        if self and self._context.unattended:
            self._context.finish()
        key = repeated(understand, given, algorithm, segment_bytes) if self else None
        known = self._context.known.get(key) if key is not None else None
        if known is None:
            run(understand(self, *given), algorithm, segment_bytes, key)
        elif known[0] is not None:
            known[0].run()
        else:
            known[1](self, *given)

    @cached_property
    def _context(self):
        """Looked up once per wrapper: `Dup` and its like make new ones."""
        return Context.of(self)

    @cached_property
    def _small(self):
        """Bytes below which calls are MPI's own here, by collective."""
        if self == MPI.COMM_NULL:
            return dict.fromkeys(collectives.COLLECTIVES, 0)
        return {name: select.native_below(name, self._context.topology) for name in collectives.COLLECTIVES}

    @cached_property
    def _small_allreduce(self):
        """Looked up a little faster."""
        return self._small["allreduce"]

    @cached_property
    def _ranks(self):
        """How many; 0 where the communicator was freed."""
        return 0 if self == MPI.COMM_NULL else self.Get_size()

    def _at_once(self, method, name, vector, other, share, *given):
        """Hand a small call on to MPI; False where it must be looked at. Every test here costs a tenth of what it serves.

        vector: the argument that is as large as the collective's vector; other: the other buffer, `share` times as small.
        Arrays that own their memory cannot overlap.
        """
        if (
            type(vector) is _ndarray
            and vector.nbytes < self._small[name]
            and vector.base is None
            and vector.itemsize > 2
            and (
                other is _IN_PLACE
                or type(other) is _ndarray
                and other.base is None
                and other is not vector
                and other.nbytes * share == vector.nbytes
            )
            and not self._context.unattended
        ):
            try:
                method(self, *given)
                return True
            except _REFUSALS as error:
                self._must_be_looked_at(error)
        return False

    def _must_be_looked_at(self, error):
        """Raise it again, unless the arguments were refused before anything was sent: we serve the call or say why not."""
        if isinstance(error, MPI.Exception) and error.Get_error_class() not in _REFUSED:
            raise error

    # The collectives: mpi4py's signatures, `info` only where mpi4py has it.

    def Bcast(self, buf, root=0, *, algorithm=None, segment_bytes=None):
        """Every rank gets the root's buffer."""
        if algorithm is not None or not self._at_once(_BCAST, "bcast", buf, _IN_PLACE, 1, buf, root):
            self._serve(arguments.bcast, (buf, root), algorithm, segment_bytes)

    def Ibcast(self, buf, root=0, *, algorithm=None, segment_bytes=None):
        """`Bcast` without waiting: a `Request`."""
        return begin(arguments.bcast(self, buf, root), algorithm, segment_bytes)

    def Bcast_init(self, buf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Bcast`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.bcast(self, buf, root), info, algorithm, segment_bytes)

    def Scatter(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r of the root's `sendbuf` (p equal blocks)."""
        self._serve(arguments.scatter, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Iscatter(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """`Scatter` without waiting: a `Request`."""
        return begin(arguments.scatter(self, sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Scatter_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Scatter`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.scatter(self, sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Scatterv(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r of the root's `sendbuf`; counts and displacements count at the root."""
        self._serve(arguments.scatterv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Iscatterv(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """`Scatterv` without waiting: a `Request`."""
        return begin(arguments.scatterv(self, sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Scatterv_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Scatterv`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.scatterv(self, sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Gather(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """The root's `recvbuf` gets the p equal blocks, in rank order."""
        self._serve(arguments.gather, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Igather(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """`Gather` without waiting: a `Request`."""
        return begin(arguments.gather(self, sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gather_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Gather`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.gather(self, sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Gatherv(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """The root's `recvbuf` gets the blocks of all ranks; counts and displacements count at the root."""
        self._serve(arguments.gatherv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Igatherv(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """`Gatherv` without waiting: a `Request`."""
        return begin(arguments.gatherv(self, sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gatherv_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Gatherv`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.gatherv(self, sendbuf, recvbuf, root), info, algorithm, segment_bytes)

    def Allgather(self, sendbuf, recvbuf, *, algorithm=None, segment_bytes=None):
        """Every rank gets the p equal blocks, in rank order."""
        if algorithm is not None or not self._at_once(_ALLGATHER, "allgather", recvbuf, sendbuf, self._ranks, sendbuf, recvbuf):
            self._serve(arguments.allgather, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Iallgather(self, sendbuf, recvbuf, *, algorithm=None, segment_bytes=None):
        """`Allgather` without waiting: a `Request`."""
        return begin(arguments.allgather(self, sendbuf, recvbuf), algorithm, segment_bytes)

    def Allgather_init(self, sendbuf, recvbuf, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Allgather`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.allgather(self, sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Allgatherv(self, sendbuf, recvbuf, *, algorithm=None, segment_bytes=None):
        """Every rank gets the blocks of all ranks, of any sizes."""
        self._serve(arguments.allgatherv, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Iallgatherv(self, sendbuf, recvbuf, *, algorithm=None, segment_bytes=None):
        """`Allgatherv` without waiting: a `Request`."""
        return begin(arguments.allgatherv(self, sendbuf, recvbuf), algorithm, segment_bytes)

    def Allgatherv_init(self, sendbuf, recvbuf, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Allgatherv`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.allgatherv(self, sendbuf, recvbuf), info, algorithm, segment_bytes)

    def Reduce(self, sendbuf, recvbuf, op=MPI.SUM, root=0, *, algorithm=None, segment_bytes=None):
        """The root's `recvbuf` gets the elementwise `op` over all ranks."""
        self._serve(arguments.reduce, (sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Ireduce(self, sendbuf, recvbuf, op=MPI.SUM, root=0, *, algorithm=None, segment_bytes=None):
        """`Reduce` without waiting: a `Request`."""
        return begin(arguments.reduce(self, sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Reduce_init(self, sendbuf, recvbuf, op=MPI.SUM, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Reduce`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.reduce(self, sendbuf, recvbuf, op, root), info, algorithm, segment_bytes)

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """Every rank gets the elementwise `op` over all ranks, the same bits everywhere."""
        # `_at_once` written out: a call costs as much as all its tests, and this is the call that is made most
        if (
            algorithm is None
            and type(recvbuf) is _ndarray
            and recvbuf.nbytes < self._small_allreduce
            and recvbuf.base is None
            and recvbuf.itemsize > 2
            and (sendbuf is _IN_PLACE or (type(sendbuf) is _ndarray and sendbuf.base is None and sendbuf is not recvbuf))
            and not self._context.unattended
        ):
            try:
                return _ALLREDUCE(self, sendbuf, recvbuf, op)
            except _REFUSALS as error:
                self._must_be_looked_at(error)
        self._serve(arguments.allreduce, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Iallreduce(self, sendbuf, recvbuf, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """`Allreduce` without waiting: a `Request`."""
        return begin(arguments.allreduce(self, sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Allreduce_init(self, sendbuf, recvbuf, op=MPI.SUM, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Allreduce`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.allreduce(self, sendbuf, recvbuf, op), info, algorithm, segment_bytes)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r (of p equal blocks) of the elementwise `op` over all ranks."""
        given = sendbuf, recvbuf, op
        if algorithm is not None or not self._at_once(_REDUCE_SCATTER, "reduce_scatter", sendbuf, recvbuf, self._ranks, *given):
            self._serve(arguments.reduce_scatter_block, given, algorithm, segment_bytes)

    def Ireduce_scatter_block(self, sendbuf, recvbuf, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """`Reduce_scatter_block` without waiting: a `Request`."""
        return begin(arguments.reduce_scatter_block(self, sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Reduce_scatter_block_init(
        self, sendbuf, recvbuf, op=MPI.SUM, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None
    ):
        """A persistent plan of `Reduce_scatter_block`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.reduce_scatter_block(self, sendbuf, recvbuf, op), info, algorithm, segment_bytes)

    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r (of `recvcounts[r]` elements) of the elementwise `op` over all ranks."""
        self._serve(arguments.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)

    def Ireduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """`Reduce_scatter` without waiting: a `Request`."""
        return begin(arguments.reduce_scatter(self, sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)

    def Reduce_scatter_init(
        self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None
    ):
        """A persistent plan of `Reduce_scatter`: Start(), Wait() or Test(), Free()."""
        return persist(arguments.reduce_scatter(self, sendbuf, recvbuf, recvcounts, op), info, algorithm, segment_bytes)


@cache
def _warn_once(problem):
    if problem and MPI.COMM_WORLD.Get_rank() == 0:
        text = f"mpicoll: {problem}; the default table and a probe decide instead"
        try:
            warnings.warn(text, stacklevel=3)
        except UserWarning:  # made an error: on this rank alone it would leave the others waiting
            print(text, file=sys.stderr, flush=True)


def _in_place_form(name, buffer, at_root, size):
    """The two buffers of a call whose input is `buffer`, where a caller who only asks gave no second one."""
    if name == "reduce":
        return (MPI.IN_PLACE, buffer) if at_root else (buffer, None)
    if name in ("allreduce", "reduce_scatter"):
        return MPI.IN_PLACE, buffer
    if name in ("allgather", "gather"):
        whole = np.empty((size, *np.shape(buffer)), buffer.dtype)
        return buffer, whole if name == "allgather" or at_root else None
    if name == "scatter":
        return (buffer, MPI.IN_PLACE) if at_root else (None, buffer[: len(buffer) // size])
    return buffer, None
