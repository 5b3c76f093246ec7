"""The collectives that move data, as methods of a process group: PyTorch's old and new names."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from .calls import Calls, Tensors, inner, options_of, single_tensor
from .memory import check_types, joined, lies_at, overlaps, parting, plain, writing
from .works import Works

_dist: Any = torch.distributed


class Moves(Calls):
    """opts: PyTorch's options; the root, and whether the call waits."""

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: Any = None, root: Any = None
    ) -> Any:
        """Every rank gets the root's tensor."""
        opts = options_of(opts, _dist.BroadcastOptions, root)
        tensor = single_tensor(tensors)
        is_root = opts.rootRank == self._rank
        values, finishes = writing(tensor, read=is_root)
        if is_root:
            finishes = []
        arguments = (self.array(values), opts.rootRank)
        return self.serve("broadcast", "Bcast", arguments, opts, [tensor], values, finishes)

    # Gathering.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Each rank gets the inputs of all, in a list of tensors, which may differ in size."""
        parts = inner(outputs)
        source = plain(single_tensor(inputs))
        whole = joined(parts, read=False)
        self.check_blocks("all_gather", parts)
        counts = [part.numel() for part in parts]
        return self._allgather(source, whole, counts, opts, list(parts), parting(whole, parts))

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """The same into a single tensor, in equal blocks."""
        source = plain(input)
        whole, finishes = writing(output, read=overlaps(source, output))
        counts = [source.numel()] * self._size
        return self._allgather(source, whole, counts, opts, [output], finishes)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """The same of several tensors."""
        return Works([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs)])

    def allgather_coalesced(
        self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> Any:
        """`allgather` of several tensors; there is an output list for each rank."""
        columns = [list(column) for column in zip(*output_lists)]
        pairs = zip(columns, inputs)
        return Works([self.allgather([column], [source], opts) for column, source in pairs])

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _allgather(
        self,
        source: torch.Tensor,
        whole: torch.Tensor,
        counts: list[int],
        opts: Any,
        result: Tensors,
        finishes: Any,
    ) -> Any:
        check_types("all_gather", source, whole)
        is_equal = len(set(counts)) == 1
        send: Any = self.array(source)
        if is_equal and lies_at(source, whole, self._rank):
            send = MPI.IN_PLACE
        elif overlaps(source, whole):
            source = source.clone()
            send = self.array(source)
        receive: Any = self.array(whole)
        method = "Allgather"
        if not is_equal:
            itemsize = whole.element_size() // receive.itemsize
            receive = [receive, [count * itemsize for count in counts]]
            method = "Allgatherv"
        memory = (source, whole, result)
        return self.serve("all_gather", method, (send, receive), opts, result, memory, finishes)

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: Any = None
    ) -> Any:
        """The root gets the inputs of all ranks, in a list of tensors."""
        opts = options_of(opts, _dist.GatherOptions, root)
        source = plain(single_tensor(inputs))
        if opts.rootRank != self._rank:
            arguments: tuple[Any, ...] = (self.array(source), None, opts.rootRank)
            return self.serve("gather", "Gather", arguments, opts, [], source)
        parts = list(inner(outputs))
        self.check_blocks("gather", parts, equal=source)
        whole = joined(parts, read=False)
        if overlaps(source, whole):
            source = source.clone()
        arguments = (self.array(source), self.array(whole), opts.rootRank)
        memory = (source, whole)
        return self.serve("gather", "Gather", arguments, opts, parts, memory, parting(whole, parts))

    # Scattering.

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: Any = None
    ) -> Any:
        """Rank r gets the r-th of the root's inputs."""
        opts = options_of(opts, _dist.ScatterOptions, root)
        output = single_tensor(outputs)
        target, finishes = writing(output)
        if opts.rootRank != self._rank:
            arguments: tuple[Any, ...] = (None, self.array(target), opts.rootRank)
            return self.serve("scatter", "Scatter", arguments, opts, [output], target, finishes)
        parts = inner(inputs)
        self.check_blocks("scatter", parts, equal=target)
        whole = joined(parts)
        if overlaps(target, whole):
            whole = whole.clone()
        arguments = (self.array(whole), self.array(target), opts.rootRank)
        memory = (whole, target)
        return self.serve("scatter", "Scatter", arguments, opts, [output], memory, finishes)

    # From each rank to each rank.

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Rank r gets the r-th input of each rank."""
        self.check_blocks("all_to_all", outputs)
        self.check_blocks("all_to_all", inputs)
        whole = joined(outputs, read=False)
        sent = [tensor.numel() for tensor in inputs]
        received = [tensor.numel() for tensor in outputs]
        finishes = parting(whole, outputs)
        return self._alltoall(joined(inputs), whole, sent, received, opts, list(outputs), finishes)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        """The same of a single tensor, in equal blocks or blocks of so many rows."""
        target, finishes = writing(output)
        sent = self._counts(input, input_splits)
        received = self._counts(output, output_splits)
        return self._alltoall(plain(input), target, sent, received, opts, [output], finishes)

    alltoall_base = all_to_all_single

    def _alltoall(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        sent: list[int],
        received: list[int],
        opts: Any,
        result: Tensors,
        finishes: Any,
    ) -> Any:
        check_types("all_to_all", source, target)
        if overlaps(source, target):
            source = source.clone()
        size = source.element_size()
        send = [self.array(source).view("u1"), [count * size for count in sent]]
        receive = [self.array(target).view("u1"), [count * size for count in received]]
        memory = (source, target)
        return self.serve(
            "all_to_all", "Alltoallv", (send, receive), opts, result, memory, finishes
        )

    def _counts(self, tensor: torch.Tensor, splits: list[int]) -> list[int]:
        """Elements of each block. splits: rows of each block; empty for equal blocks."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self._size:
                raise ValueError(
                    f"all_to_all_single: {rows} rows are no equal blocks for {self._size} ranks: "
                    "give split sizes"
                )
            return [tensor.numel() // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: expected {self._size} split sizes with the sum {rows}, "
                f"got {splits}"
            )
        width = tensor.numel() // rows if rows else 0
        return [count * width for count in splits]
