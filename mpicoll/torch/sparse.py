"""Sums of sparse tensors: indices and values of all ranks are gathered, and added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

from .memory import plain
from .ops import ReduceOp, Unsupported
from .works import Done

if TYPE_CHECKING:
    from .calls import Calls


def sum_of_sparse(group: Calls, tensor: torch.Tensor, opts: Any) -> Any:
    """The tensor becomes the sum of those of all ranks. It waits, as what is to be received must be known before."""
    if hash(opts.reduceOp) != hash(ReduceOp.SUM):
        raise Unsupported(f"of sparse tensors mpicoll knows the sum alone, not {opts.reduceOp}")
    level, mine = group.level(), tensor.detach().coalesce()
    counts = numpy.empty(level.comm.Get_size(), numpy.int64)
    level.run("Allgather", (numpy.array([mine._nnz()]), counts), counts, ())
    indices, values = plain(mine.indices().t()), plain(mine.values())
    gathered = [_gathered(group, one, counts) for one in (indices, values)]
    total = torch.sparse_coo_tensor(gathered[0].t(), gathered[1], tensor.shape).coalesce()
    with torch.inference_mode():
        tensor.copy_(total)
    return Done([tensor])


def _gathered(group: Calls, rows: torch.Tensor, counts: numpy.ndarray[Any, Any]) -> torch.Tensor:
    """The rows of all ranks, one after the other."""
    whole = rows.new_empty((int(counts.sum()), *rows.shape[1:]))
    width = rows[:1].numel() if len(rows) else whole[:1].numel()
    receive, each = group.array(whole).view("u1"), width * rows.element_size()
    blocks = [receive, [int(count) * each for count in counts]]
    group.level().run("Allgatherv", (group.array(rows).view("u1"), blocks), (rows, whole), ())
    return whole
