"""The collectives of a process group that move data: the methods that PyTorch calls, by its old and new names."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from .calls import Calls, Tensors, inner, one_of, options_of
from .memory import check_types, joined, lies_at, overlaps, parting, plain, writing
from .works import Works

_IN_PLACE = MPI.IN_PLACE
_dist: Any = torch.distributed


class Moves(Calls):
    """opts: PyTorch's options; the root, and whether the call waits."""

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, root: Any = None) -> Any:
        """Every rank gets the root's tensor."""
        opts = options_of(opts, _dist.BroadcastOptions, root)
        tensor, root = one_of(tensors), opts.rootRank
        is_root = root == self._rank
        values, finishes = writing(tensor, read=is_root)
        given = self.array(values), root
        return self.serve("broadcast", "Bcast", given, opts, [tensor], values, () if is_root else finishes)

    # Blocks that are gathered.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Each rank gets the inputs of all, in a list of tensors, which may be of different sizes."""
        parts = inner(outputs)
        source, whole = plain(one_of(inputs)), joined(parts, read=False)
        self.check_blocks("all_gather", parts)
        finishes = parting(whole, parts)
        return self._allgather(source, whole, [one.numel() for one in parts], opts, list(parts), finishes)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """The same into one tensor, in equal blocks."""
        source = plain(input)
        whole, finishes = writing(output, read=overlaps(source, output))
        return self._allgather(source, whole, [source.numel()] * self._size, opts, [output], finishes)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The same of several."""
        return Works([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs)])

    def allgather_coalesced(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Of several tensors; the lists are those of each rank."""
        columns = [list(column) for column in zip(*output_lists)]
        return Works([self.allgather([column], [one], opts) for column, one in zip(columns, inputs)])

    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced

    def _allgather(self, source: torch.Tensor, whole: torch.Tensor, counts: list[int], opts: Any, result: Tensors,
                   finishes: Any) -> Any:  # fmt: skip
        check_types("all_gather", source, whole)
        send: Any = self.array(source)
        if len(set(counts)) == 1 and lies_at(source, whole, self._rank):
            send = _IN_PLACE
        elif overlaps(source, whole):
            source = source.clone()
            send = self.array(source)
        receive: Any = self.array(whole)
        kept = source, whole, result
        if len(set(counts)) == 1:
            return self.serve("all_gather", "Allgather", (send, receive), opts, result, kept, finishes)
        itemsize = whole.element_size() // receive.itemsize
        receive = [receive, [count * itemsize for count in counts]]
        return self.serve("all_gather", "Allgatherv", (send, receive), opts, result, kept, finishes)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: Any = None) -> Any:
        """The root gets the inputs of all ranks, in a list of tensors."""
        opts = options_of(opts, _dist.GatherOptions, root)
        source = plain(one_of(inputs))
        if opts.rootRank != self._rank:
            return self.serve("gather", "Gather", (self.array(source), None, opts.rootRank), opts, [], source)
        parts = list(inner(outputs))
        self.check_blocks("gather", parts, equal=source)
        whole = joined(parts, read=False)
        if overlaps(source, whole):
            source = source.clone()
        given = self.array(source), self.array(whole), opts.rootRank
        return self.serve("gather", "Gather", given, opts, parts, (source, whole), parting(whole, parts))

    # Blocks that are dealt out.

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: Any = None) -> Any:
        """Rank r gets the r-th of the root's inputs."""
        opts = options_of(opts, _dist.ScatterOptions, root)
        output = one_of(outputs)
        target, finishes = writing(output)
        if opts.rootRank != self._rank:
            given: tuple[Any, ...] = None, self.array(target), opts.rootRank
            return self.serve("scatter", "Scatter", given, opts, [output], target, finishes)
        parts = inner(inputs)
        self.check_blocks("scatter", parts, equal=target)
        whole = joined(parts)
        if overlaps(target, whole):
            whole = whole.clone()
        given = self.array(whole), self.array(target), opts.rootRank
        return self.serve("scatter", "Scatter", given, opts, [output], (whole, target), finishes)

    # Each to each.

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Rank r gets the r-th input of each rank."""
        self.check_blocks("all_to_all", outputs)
        self.check_blocks("all_to_all", inputs)
        whole = joined(outputs, read=False)
        counts = [[one.numel() for one in side] for side in (inputs, outputs)]
        return self._alltoall(joined(inputs), whole, *counts, opts, list(outputs), parting(whole, outputs))

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None,
    ) -> Any:  # fmt: skip
        """The same of one tensor each, in equal blocks or blocks of so many rows."""
        target, finishes = writing(output)
        counts = [self._rows(input, input_splits), self._rows(output, output_splits)]
        return self._alltoall(plain(input), target, *counts, opts, [output], finishes)

    alltoall_base = all_to_all_single

    def _alltoall(self, source: torch.Tensor, target: torch.Tensor, sent: list[int], received: list[int], opts: Any,
                  result: Tensors, finishes: Any) -> Any:  # fmt: skip
        check_types("all_to_all", source, target)
        if overlaps(source, target):
            source = source.clone()
        size = source.element_size()
        send, receive = self.array(source).view("u1"), self.array(target).view("u1")
        given = [send, [count * size for count in sent]], [receive, [count * size for count in received]]
        return self.serve("all_to_all", "Alltoallv", given, opts, result, (source, target), finishes)

    def _rows(self, tensor: torch.Tensor, splits: list[int]) -> list[int]:
        """Elements of each block."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self._size:
                raise ValueError(f"all_to_all_single: {rows} rows are no equal blocks for {self._size} ranks: give split sizes")
            return [tensor.numel() // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise ValueError(f"all_to_all_single: expected {self._size} split sizes with the sum {rows}, got {splits}")
        width = tensor.numel() // rows if rows else 0
        return [count * width for count in splits]
