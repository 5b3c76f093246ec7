"""`Communicator`: an MPI.Intracomm whose collectives are served by schedules or by MPI, whichever is chosen."""

from functools import cached_property

import numpy as np
from mpi4py import MPI

from . import arguments, collectives, select
from .errors import ArgumentError
from .execute import Wire, repeated
from .explain import explain

_SMALL = 0 if select.environment() else select.SMALL
_IN_PLACE, _ndarray, _allreduce = MPI.IN_PLACE, np.ndarray, MPI.Intracomm.Allreduce
_REFUSED = {MPI.ERR_OP, MPI.ERR_TYPE, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_ARG}


class Communicator(MPI.Intracomm):
    """An intracommunicator with mpicoll's collectives; everything else is mpi4py's.

    Signatures are mpi4py's plus two keywords: `algorithm` (a word of `mpicoll.list_algorithms`, None: chosen) and
    `segment_bytes` (of pipelined algorithms). Results are the same bits on all ranks.

    Raises ArgumentError (unknown algorithm, one that cannot serve, root out of range, freed communicator) and
    BufferError (types, sizes, access, overlap of buffers), both before anything is sent.
    """

    def __new__(cls, comm=None):
        if isinstance(comm, MPI.Intercomm) and comm != MPI.COMM_NULL:
            raise ArgumentError("mpicoll.Communicator needs an intra-communicator: use Intercomm.Merge() first")
        select.environment()  # a bad value is an error here, not at the first call
        return super().__new__(cls, comm)

    # The same class again.

    def Split(self, color=0, key=0):
        return type(self)(super().Split(color, key))

    def Split_type(self, split_type, key=0, info=MPI.INFO_NULL):
        return type(self)(super().Split_type(split_type, key, info))

    def Create(self, group):
        return type(self)(super().Create(group))

    def Create_group(self, group, tag=0):
        return type(self)(super().Create_group(group, tag))

    @classmethod
    def Create_from_group(cls, *arguments, **keywords):
        return cls(super().Create_from_group(*arguments, **keywords))

    # Counting and explaining.

    @property
    def sent(self):
        """(messages, bytes) this rank has sent in schedules so far, counted where the sends are started."""
        return self._wire.messages, self._wire.nbytes

    def explain(self, collective, sendbuf, recvbuf=None, *, op=MPI.SUM, root=0, algorithm=None, segment_bytes=None):
        """What a call would do and why: algorithm, rounds, messages, bytes sent by this rank, lower bound, reason.

        sendbuf, recvbuf: as in the call (bcast: the buffer); one array is enough, it then stands for the input. Nothing is
        sent and nothing is changed. Raises what the call would raise.
        """
        name = collectives.find(collective).name
        if recvbuf is None:
            sendbuf, recvbuf = _in_place_form(name, sendbuf, self.Get_rank() == root, self.Get_size())
        given = {"bcast": (sendbuf, root), "reduce": (sendbuf, recvbuf, op, root), "allreduce": (sendbuf, recvbuf, op),
                 "reduce_scatter": (sendbuf, recvbuf, op), "allgather": (sendbuf, recvbuf),
                 "scatter": (sendbuf, recvbuf, root), "gather": (sendbuf, recvbuf, root)}[name]  # fmt: skip
        understand = arguments.reduce_scatter_block if name == "reduce_scatter" else getattr(arguments, name)
        return explain(understand(self, *given), algorithm, segment_bytes)

    def _serve(self, understand, given, algorithm, segment_bytes):
        """Serve a blocking call; one that was served before on the same memory is not looked at again."""
        key = repeated(understand, given, algorithm, segment_bytes) if self else None
        known = self._wire.known.get(key) if key is not None else None
        if known is None:
            understand(self, *given).run(algorithm, segment_bytes, key)
        elif known[0] is not None:
            known[0].run()
        else:
            known[1](self, *given)

    @cached_property
    def _wire(self):
        """Looked up once per wrapper: `Dup` and its like make new ones."""
        return Wire.of(self)

    # The collectives: mpi4py's signatures, `info` only where mpi4py has it.

    def Bcast(self, buf, root=0, *, algorithm=None, segment_bytes=None):
        """Every rank gets the root's buffer."""
        self._serve(arguments.bcast, (buf, root), algorithm, segment_bytes)

    def Bcast_init(self, buf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Bcast`: Start(), Wait() or Test(), Free()."""
        return arguments.bcast(self, buf, root).init(info, algorithm, segment_bytes)

    def Scatter(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r of the root's `sendbuf` (p equal blocks)."""
        self._serve(arguments.scatter, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Scatter_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Scatter`: Start(), Wait() or Test(), Free()."""
        return arguments.scatter(self, sendbuf, recvbuf, root).init(info, algorithm, segment_bytes)

    def Scatterv(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r of the root's `sendbuf`; counts and displacements count at the root."""
        self._serve(arguments.scatterv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Scatterv_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Scatterv`: Start(), Wait() or Test(), Free()."""
        return arguments.scatterv(self, sendbuf, recvbuf, root).init(info, algorithm, segment_bytes)

    def Gather(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """The root's `recvbuf` gets the p equal blocks, in rank order."""
        self._serve(arguments.gather, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gather_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Gather`: Start(), Wait() or Test(), Free()."""
        return arguments.gather(self, sendbuf, recvbuf, root).init(info, algorithm, segment_bytes)

    def Gatherv(self, sendbuf, recvbuf, root=0, *, algorithm=None, segment_bytes=None):
        """The root's `recvbuf` gets the blocks of all ranks; counts and displacements count at the root."""
        self._serve(arguments.gatherv, (sendbuf, recvbuf, root), algorithm, segment_bytes)

    def Gatherv_init(self, sendbuf, recvbuf, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Gatherv`: Start(), Wait() or Test(), Free()."""
        return arguments.gatherv(self, sendbuf, recvbuf, root).init(info, algorithm, segment_bytes)

    def Allgather(self, sendbuf, recvbuf, *, algorithm=None, segment_bytes=None):
        """Every rank gets the p equal blocks, in rank order."""
        self._serve(arguments.allgather, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Allgather_init(self, sendbuf, recvbuf, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Allgather`: Start(), Wait() or Test(), Free()."""
        return arguments.allgather(self, sendbuf, recvbuf).init(info, algorithm, segment_bytes)

    def Allgatherv(self, sendbuf, recvbuf, *, algorithm=None, segment_bytes=None):
        """Every rank gets the blocks of all ranks, of any sizes."""
        self._serve(arguments.allgatherv, (sendbuf, recvbuf), algorithm, segment_bytes)

    def Allgatherv_init(self, sendbuf, recvbuf, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Allgatherv`: Start(), Wait() or Test(), Free()."""
        return arguments.allgatherv(self, sendbuf, recvbuf).init(info, algorithm, segment_bytes)

    def Reduce(self, sendbuf, recvbuf, op=MPI.SUM, root=0, *, algorithm=None, segment_bytes=None):
        """The root's `recvbuf` gets the elementwise `op` over all ranks."""
        self._serve(arguments.reduce, (sendbuf, recvbuf, op, root), algorithm, segment_bytes)

    def Reduce_init(self, sendbuf, recvbuf, op=MPI.SUM, root=0, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Reduce`: Start(), Wait() or Test(), Free()."""
        return arguments.reduce(self, sendbuf, recvbuf, op, root).init(info, algorithm, segment_bytes)

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """Every rank gets the elementwise `op` over all ranks, the same bits everywhere."""
        # small, and no two views of one array: MPI's own call at once; every test here costs a tenth of what it serves
        if (
            algorithm is None
            and type(recvbuf) is _ndarray
            and recvbuf.nbytes < _SMALL
            and recvbuf.base is None
            and recvbuf.itemsize > 2
            and (sendbuf is _IN_PLACE or (type(sendbuf) is _ndarray and sendbuf.base is None and sendbuf is not recvbuf))
        ):
            try:
                return _allreduce(self, sendbuf, recvbuf, op)
            except (ValueError, TypeError, KeyError, BufferError):
                pass  # mpi4py refuses it (strides, access, types), before anything is sent: we serve it or say why not
            except MPI.Exception as error:
                if error.Get_error_class() not in _REFUSED:
                    raise
        self._serve(arguments.allreduce, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Allreduce_init(self, sendbuf, recvbuf, op=MPI.SUM, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None):
        """A persistent plan of `Allreduce`: Start(), Wait() or Test(), Free()."""
        return arguments.allreduce(self, sendbuf, recvbuf, op).init(info, algorithm, segment_bytes)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r (of p equal blocks) of the elementwise `op` over all ranks."""
        self._serve(arguments.reduce_scatter_block, (sendbuf, recvbuf, op), algorithm, segment_bytes)

    def Reduce_scatter_block_init(
        self, sendbuf, recvbuf, op=MPI.SUM, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None
    ):
        """A persistent plan of `Reduce_scatter_block`: Start(), Wait() or Test(), Free()."""
        return arguments.reduce_scatter_block(self, sendbuf, recvbuf, op).init(info, algorithm, segment_bytes)

    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM, *, algorithm=None, segment_bytes=None):
        """Rank r gets block r (of `recvcounts[r]` elements) of the elementwise `op` over all ranks."""
        self._serve(arguments.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), algorithm, segment_bytes)

    def Reduce_scatter_init(
        self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM, info=MPI.INFO_NULL, *, algorithm=None, segment_bytes=None
    ):
        """A persistent plan of `Reduce_scatter`: Start(), Wait() or Test(), Free()."""
        return arguments.reduce_scatter(self, sendbuf, recvbuf, recvcounts, op).init(info, algorithm, segment_bytes)


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
