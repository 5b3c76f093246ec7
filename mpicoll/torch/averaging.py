"""Averages of the gradients of DistributedDataParallel, sent in codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from mpi4py import MPI

from .. import engine
from ..buffers import CodingLoss, compression_of
from ..codes import CompressionName
from ..communicator import Communicator
from ..execute import Context
from ..support.arrays import Array
from ..support.checks import check
from .ops import ReduceOp, reduction
from .process_group import ProcessGroup

#: with error feedback: the reduce-scatter, and the allgather of its sums
_SCATTER = "pairwise"
_GATHER = "ring"


class Residuals:
    """Error feedback of one bucket: what codes lost of its gradients, in float32.

    The bucket is cut into equal shards, the last ones padded (`CodingLoss`).
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], compression: CompressionName, comm: Communicator
    ) -> None:
        self.parameters = list(parameters)
        self._rank = comm.Get_rank()
        self._shards = comm.Get_size()
        self._count = sum(parameter.numel() for parameter in parameters)
        shard = -(-self._count // self._shards)
        self._lost: Array = numpy.zeros(self._shards * shard, numpy.float32)
        #: the gradients of this rank with what was lost before; later the averages
        self.gradients: Array = numpy.zeros(self._shards * shard, numpy.float32)
        self.sums: Array = numpy.zeros(shard, numpy.float32)
        self._own = slice(self._rank * shard, (self._rank + 1) * shard)
        self._loss = CodingLoss(
            compression_of(compression),
            self._rank,
            len(self._lost),
            compiled=engine.status().extension,
        )

    def lost(self) -> list[Array]:
        """What was lost of each parameter's gradient; views."""
        ends = numpy.cumsum([parameter.numel() for parameter in self.parameters])
        return numpy.split(self._lost[: self._count], ends[:-1])

    def feed(self, bucket: torch.Tensor) -> None:
        """Take the gradients of a bucket, and note what will be lost of them."""
        flat = torch.from_numpy(self.gradients)
        flat[: self._count].copy_(bucket)
        flat[self._count :].zero_()
        self._loss.feed(self.gradients, self._lost, self._lost, self._shards)

    def feed_sums(self) -> None:
        """The sums of this rank's shard are about to be sent: note what will be lost of them."""
        self.gradients[self._own] = self.sums
        self._loss.feed_sums(self.sums, self._lost[self._own])

    def averages(self) -> torch.Tensor:
        """What has come."""
        return torch.from_numpy(self.gradients[: self._count])


class Averaging:
    """The averages of the buckets of one module."""

    def __init__(
        self, compression: CompressionName, error_feedback: bool, algorithm: str | None
    ) -> None:
        self._compression = compression
        self._error_feedback = error_feedback
        self._algorithm = algorithm
        #: by the number of a bucket
        self._residuals: dict[int, Residuals] = {}
        #: what was lost of parameters, by identity, whose buckets are still to be made
        self._loose: dict[int, Array] = {}

    def begin(self, group: Any, bucket: Any) -> torch.futures.Future[Any]:
        """Begin to average a bucket; returns the future of its gradients."""
        ours = isinstance(group, ProcessGroup)
        check("process group", group, ours, 'one of the backend "mpicoll"')
        whole: torch.Tensor = bucket.buffer()
        check("gradients", f"some on {whole.device}", whole.is_cpu, "gradients in host memory")
        whole.div_(group.size())
        exact = [view for view in bucket.gradients() if view.dim() < 2]
        if group.size() == 1 or len(exact) == len(bucket.gradients()):
            return _future_of(group.allreduce([whole]), whole)
        return self._begin(group, bucket, whole, exact)

    def _begin(
        self, group: ProcessGroup, bucket: Any, whole: torch.Tensor, exact: list[torch.Tensor]
    ) -> torch.futures.Future[Any]:
        beside = None
        if exact:
            joined = torch.cat([view.reshape(-1) for view in exact])
            beside = group.allreduce([joined])
            for view in exact:  # the scale of codes is not theirs
                view.zero_()

        def finish() -> torch.Tensor:
            if beside is not None:
                beside.wait()
                for view, values in zip(exact, joined.split([view.numel() for view in exact])):
                    view.copy_(values.view_as(view))
            return whole

        is_one_node = Context.of(group.comm).topology.node_count == 1
        if not self._error_feedback or (is_one_node and self._algorithm is None):
            future = self._allreduce(group, whole)

            def end(done: torch.futures.Future[Any]) -> torch.Tensor:
                done.value()  # raises its error
                return finish()

            return future.then(end)
        residuals = self._residuals_of(bucket, group.comm)
        residuals.feed(whole)
        future = self._reduce_scatter(group, residuals)

        def gather(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()  # raises its error
            residuals.feed_sums()
            self._allgather(group, residuals)
            whole.copy_(residuals.averages())
            return finish()

        return future.then(gather)

    def _allreduce(self, group: ProcessGroup, whole: torch.Tensor) -> torch.futures.Future[Any]:
        array = reduction(ReduceOp.SUM, whole.dtype, group.size()).array(group.array(whole))
        arguments = (MPI.IN_PLACE, array, MPI.SUM)
        work = group.level().begin(
            "Allreduce", arguments, [whole], whole, (), self._algorithm, self._compression
        )
        return work.get_future()

    def _reduce_scatter(
        self, group: ProcessGroup, residuals: Residuals
    ) -> torch.futures.Future[Any]:
        arguments = (residuals.gradients, residuals.sums, MPI.SUM)
        work = group.level().begin(
            "Reduce_scatter_block", arguments, [], residuals, (), _SCATTER, self._compression
        )
        return work.get_future()

    def _allgather(self, group: ProcessGroup, residuals: Residuals) -> None:
        arguments = (MPI.IN_PLACE, residuals.gradients)
        work = group.level().begin(
            "Allgather", arguments, [], residuals, (), _GATHER, self._compression
        )
        work.wait()

    def lost(self) -> dict[int, Array]:
        """What was lost of each parameter's gradient, by its identity."""
        lost = dict(self._loose)
        for residuals in self._residuals.values():
            lost.update(zip(map(id, residuals.parameters), residuals.lost()))
        return lost

    def restore(self, lost: Mapping[int, Array]) -> None:
        """Go on with what `lost` gave."""
        self._loose = dict(lost)
        self._residuals.clear()

    def _residuals_of(self, bucket: Any, comm: Communicator) -> Residuals:
        """Those of a bucket; of parameters that were in another one before, with what was lost."""
        parameters = bucket.parameters()
        number = bucket.index()
        residuals = self._residuals.get(number)
        if residuals is not None and _same(residuals.parameters, parameters):
            return residuals
        if residuals is not None:
            self.restore(self.lost())
        residuals = Residuals(parameters, self._compression, comm)
        for parameter, lost in zip(residuals.parameters, residuals.lost()):
            if id(parameter) in self._loose:
                lost[...] = self._loose.pop(id(parameter))
        self._residuals[number] = residuals
        return residuals


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others))


def _future_of(work: Any, whole: torch.Tensor) -> torch.futures.Future[Any]:
    """The future of a tensor, of a work that has a list of it."""

    def tensor_of(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()  # raises its error
        return whole

    future: torch.futures.Future[Any] = work.get_future().then(tensor_of)
    return future
