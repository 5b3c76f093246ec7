"""The collectives that reduce, as methods of a process group: PyTorch's old and new names."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from .calls import Calls, Tensors, inner, options_of, single_tensor
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
        tensor = single_tensor(tensors)
        opts = options_of(opts, _dist.AllreduceOptions)
        if tensor.is_sparse:
            return sum_of_sparse(self, tensor, opts)
        how = self._reduction(opts, tensor)
        values, finishes = _reduced_in(tensor, how)
        return self._allreduce(values, how, opts, [tensor], values, finishes)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """The same of several tensors, together."""
        opts = options_of(opts, _dist.AllreduceCoalescedOptions)
        types = {tensor.dtype for tensor in tensors}
        if len(types) > 1 or any(tensor.is_sparse for tensor in tensors):
            return Works([self.allreduce([tensor], opts) for tensor in tensors])
        how = self._reduction(opts, tensors[0])
        whole = how.before(joined(tensors))
        memory = (whole, tensors)
        return self._allreduce(whole, how, opts, tensors, memory, parting(whole, tensors))

    def _allreduce(
        self,
        values: torch.Tensor,
        how: Reduction,
        opts: Any,
        result: Tensors,
        memory: object,
        finishes: list[Finish],
    ) -> Any:
        array = how.array(self.array(values))
        arguments = (_IN_PLACE, array, how.op)
        algorithm = how.algorithm("Allreduce", array.nbytes)
        finishes = [*how.after(values), *finishes]
        return self.serve(
            "all_reduce", "Allreduce", arguments, opts, result, memory, finishes, algorithm
        )

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        root: Any = None,
    ) -> Any:
        """The root's tensor becomes the reduction of those of all ranks."""
        opts = options_of(opts, _dist.ReduceOptions, root, op)
        tensor = single_tensor(tensors)
        how = self._reduction(opts, tensor)
        values, finishes = _reduced_in(tensor, how)
        array = how.array(self.array(values))
        if opts.rootRank == self._rank:
            arguments = (_IN_PLACE, array, how.op, opts.rootRank)
            finishes = [*how.after(values), *finishes]
        else:
            arguments = (array, None, how.op, opts.rootRank)
            finishes = []
        algorithm = how.algorithm("Reduce", array.nbytes)
        return self.serve(
            "reduce", "Reduce", arguments, opts, [tensor], values, finishes, algorithm
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """The output of rank r becomes the reduction of the r-th inputs of all ranks.

        The inputs of a rank may differ in size.
        """
        parts = inner(inputs)
        self.check_blocks("reduce_scatter", parts)
        counts = [part.numel() for part in parts]
        output = single_tensor(outputs)
        opts = options_of(opts, _dist.ReduceScatterOptions)
        return self._reduce_scatter(output, joined(parts), counts, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Any:
        """The same of a single input, in equal blocks."""
        counts = [input.numel() // self._size] * self._size
        opts = options_of(opts, _dist.ReduceScatterOptions)
        return self._reduce_scatter(output, input, counts, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """The same of several tensors."""
        return Works([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)])

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, counts: list[int], opts: Any
    ) -> Any:
        check_types("reduce_scatter", output, whole)
        how = self._reduction(opts, whole)
        source = how.before(plain(whole))
        target, finishes = writing(output)
        if overlaps(source, target):
            source = source.clone()
        send = how.array(self.array(source))
        receive = how.array(self.array(target))
        arguments: tuple[Any, ...] = (send, receive, how.op)
        method = "Reduce_scatter_block"
        if len(set(counts)) != 1:
            arguments = (send, receive, counts, how.op)
            method = "Reduce_scatter"
        algorithm = how.algorithm(method, send.nbytes)
        memory = (source, target)
        finishes = [*how.after(target), *finishes]
        return self.serve(
            "reduce_scatter", method, arguments, opts, [output], memory, finishes, algorithm
        )

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait for all ranks, and for the calls that this rank began before."""
        opts = options_of(opts, _dist.BarrierOptions)
        level = self.level()
        seconds = opts.timeout.total_seconds()
        level.wait()
        word = torch.zeros(1, dtype=torch.uint8, device="cpu")
        arguments = (_IN_PLACE, self.array(word), MPI.MAX)
        # a schedule, at any size: a call of MPI's own cannot be given up
        work = level.begin("Allreduce", arguments, [], word, (), "recursive_doubling")
        if not getattr(opts, "asyncOp", True):
            if seconds > 0:
                work.wait_for(seconds)
            else:
                work.wait()
        return work

    def _reduction(self, opts: Any, tensor: torch.Tensor) -> Reduction:
        return reduction(opts.reduceOp, tensor.dtype, self._size)


def _reduced_in(tensor: torch.Tensor, how: Reduction) -> tuple[torch.Tensor, list[Finish]]:
    """The memory in which a tensor is reduced, and the steps that write the result back.

    It is the tensor's own memory where that has no gaps and the operation takes it unchanged.
    """
    operand = how.before(tensor)
    if operand is tensor:
        return writing(tensor, read=True)
    values = plain(operand)
    return values, [lambda: tensor.copy_(values)]
