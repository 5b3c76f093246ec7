"""The collectives of a process group that reduce: the methods that PyTorch calls, by its old and new names."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from .calls import Calls, Tensors, one_of
from .memory import Finish, joined, overlaps, parting, plain, writing
from .ops import Reduction, reduction
from .sparse import sum_of_sparse
from .works import Works

_IN_PLACE = MPI.IN_PLACE
_dist = torch.distributed


class Reductions(Calls):
    """opts: PyTorch's options; operation, root, and whether the call waits."""

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Each tensor becomes the reduction of those of all ranks."""
        if not isinstance(tensors, torch.Tensor) and len(tensors) > 1:
            return self.allreduce_coalesced(tensors, opts)
        tensor, opts = one_of(tensors), _options(opts, _dist.AllreduceOptions)
        if tensor.is_sparse:
            return sum_of_sparse(self, tensor, opts)
        how = self._reduction(opts, tensor)
        values, finishes = _reduced_in(tensor, how)
        array = how.array(self.array(values))
        finishes = [*how.after(values), *finishes]
        return self.serve("all_reduce", "Allreduce", (_IN_PLACE, array, how.op), opts, [tensor], values, finishes)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """The same of several tensors, together."""
        opts = _options(opts, _dist.AllreduceCoalescedOptions)
        if len({one.dtype for one in tensors}) > 1 or any(one.is_sparse for one in tensors):
            return Works([self.allreduce([one], opts) for one in tensors])
        how = self._reduction(opts, tensors[0])
        whole = how.before(joined(tensors))
        array = how.array(self.array(whole))
        finishes = [*how.after(whole), *parting(whole, tensors)]
        return self.serve("all_reduce", "Allreduce", (_IN_PLACE, array, how.op), opts, tensors, (whole, tensors), finishes)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """The root's tensor becomes the reduction of those of all ranks."""
        tensor, how = one_of(tensors), self._reduction(opts, one_of(tensors))
        is_root = opts.rootRank == self._rank
        values, finishes = _reduced_in(tensor, how)
        array = how.array(self.array(values))
        given = (_IN_PLACE, array, how.op, opts.rootRank) if is_root else (array, None, how.op, opts.rootRank)
        finishes = [*how.after(values), *finishes] if is_root else []
        return self.serve("reduce", "Reduce", given, opts, [tensor], values, finishes)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """The output of rank r becomes the reduction of the r-th inputs of all ranks, which may be of different sizes."""
        parts = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
        counts = [one.numel() for one in parts]
        return self._reduce_scatter(one_of(outputs), joined(parts), counts, _options(opts, _dist.ReduceScatterOptions))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """The same of one input, in equal blocks."""
        counts = [input.numel() // self._size] * self._size
        return self._reduce_scatter(output, input, counts, _options(opts, _dist.ReduceScatterOptions))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The same of several."""
        return Works([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)])

    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, counts: list[int], opts: Any) -> Any:
        how = self._reduction(opts, whole)
        source = how.before(plain(whole))
        target, finishes = writing(output)
        if overlaps(source, target):
            source = source.clone()
        send, receive = (how.array(self.array(one)) for one in (source, target))
        finishes = [*how.after(target), *finishes]
        if len(set(counts)) == 1:
            given: tuple[Any, ...] = send, receive, how.op
            return self.serve("reduce_scatter", "Reduce_scatter_block", given, opts, [output], (source, target), finishes)
        given = send, receive, counts, how.op
        return self.serve("reduce_scatter", "Reduce_scatter", given, opts, [output], (source, target), finishes)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait for all ranks, and for what was begun before."""
        opts = _options(opts, _dist.BarrierOptions)
        level, seconds = self.level(), opts.timeout.total_seconds()
        level.wait()
        word = torch.zeros(1, dtype=torch.uint8)
        # a schedule, at any size: MPI's own could not be given up
        work = level.begin("Allreduce", (_IN_PLACE, self.array(word), MPI.MAX), [], word, (), "recursive_doubling")
        if not getattr(opts, "asyncOp", True):
            work.wait_for(seconds) if seconds > 0 else work.wait()
        return work

    def _reduction(self, opts: Any, tensor: torch.Tensor) -> Reduction:
        return reduction(opts.reduceOp, tensor.dtype, self._size)


def _reduced_in(tensor: torch.Tensor, how: Reduction) -> tuple[torch.Tensor, list[Finish]]:
    """The memory in which a tensor is reduced: its own, where it has no gaps and counts as it is."""
    given = how.before(tensor)
    if given is tensor:
        return writing(tensor, read=True)
    values = plain(given)
    return values, [lambda: tensor.copy_(values)]


def _options(given: Any, kind: Any) -> Any:
    """What PyTorch's functions give; users of groups may give an operation alone, or nothing."""
    if given is None or isinstance(given, (_dist.ReduceOp, _dist.ReduceOp.RedOpType)):
        options = kind()
        if given is not None:
            options.reduceOp = given
        return options
    return given
