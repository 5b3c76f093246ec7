"""The collectives of a process group that reduce: the methods that PyTorch calls, by its old and new names."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from .calls import Calls, Tensors, inner, one_of, options_of
from .memory import Finish, check_types, joined, overlaps, parting, plain, writing
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
        tensor, opts = one_of(tensors), options_of(opts, _dist.AllreduceOptions)
        if tensor.is_sparse:
            return sum_of_sparse(self, tensor, opts)
        how = self._reduction(opts, tensor)
        values, finishes = _reduced_in(tensor, how)
        array = how.array(self.array(values))
        finishes = [*how.after(values), *finishes]
        given, algorithm = (_IN_PLACE, array, how.op), how.algorithm("Allreduce", array.nbytes)
        return self.serve("all_reduce", "Allreduce", given, opts, [tensor], values, finishes, algorithm)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """The same of several tensors, together."""
        opts = options_of(opts, _dist.AllreduceCoalescedOptions)
        if len({one.dtype for one in tensors}) > 1 or any(one.is_sparse for one in tensors):
            return Works([self.allreduce([one], opts) for one in tensors])
        how = self._reduction(opts, tensors[0])
        whole = how.before(joined(tensors))
        array = how.array(self.array(whole))
        finishes = [*how.after(whole), *parting(whole, tensors)]
        given, algorithm = (_IN_PLACE, array, how.op), how.algorithm("Allreduce", array.nbytes)
        return self.serve("all_reduce", "Allreduce", given, opts, tensors, (whole, tensors), finishes, algorithm)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, root: Any = None) -> Any:
        """The root's tensor becomes the reduction of those of all ranks."""
        opts = options_of(opts, _dist.ReduceOptions, root, op)
        tensor, how = one_of(tensors), self._reduction(opts, one_of(tensors))
        is_root = opts.rootRank == self._rank
        values, finishes = _reduced_in(tensor, how)
        array = how.array(self.array(values))
        given = (_IN_PLACE, array, how.op, opts.rootRank) if is_root else (array, None, how.op, opts.rootRank)
        finishes = [*how.after(values), *finishes] if is_root else []
        algorithm = how.algorithm("Reduce", array.nbytes)
        return self.serve("reduce", "Reduce", given, opts, [tensor], values, finishes, algorithm)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """The output of rank r becomes the reduction of the r-th inputs of all ranks, which may be of different sizes."""
        parts = inner(inputs)
        self.check_blocks("reduce_scatter", parts)
        counts = [one.numel() for one in parts]
        return self._reduce_scatter(one_of(outputs), joined(parts), counts, options_of(opts, _dist.ReduceScatterOptions))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """The same of one input, in equal blocks."""
        counts = [input.numel() // self._size] * self._size
        return self._reduce_scatter(output, input, counts, options_of(opts, _dist.ReduceScatterOptions))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The same of several."""
        return Works([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)])

    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, counts: list[int], opts: Any) -> Any:
        check_types("reduce_scatter", output, whole)
        how = self._reduction(opts, whole)
        source = how.before(plain(whole))
        target, finishes = writing(output)
        if overlaps(source, target):
            source = source.clone()
        send, receive = (how.array(self.array(one)) for one in (source, target))
        finishes = [*how.after(target), *finishes]
        given: tuple[Any, ...] = (send, receive, how.op)
        method = "Reduce_scatter_block"
        if len(set(counts)) != 1:
            given, method = (send, receive, counts, how.op), "Reduce_scatter"
        algorithm = how.algorithm(method, send.nbytes)
        return self.serve("reduce_scatter", method, given, opts, [output], (source, target), finishes, algorithm)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait for all ranks, and for what was begun before."""
        opts = options_of(opts, _dist.BarrierOptions)
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
