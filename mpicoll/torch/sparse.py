"""Sums of sparse tensors: each rank gathers indices and values of all ranks, and adds them up."""

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
    """The tensor becomes the sum of those of all ranks.

    It waits: a rank must have the sizes of the others before it can receive their values.
    """
    if hash(opts.reduceOp) != hash(ReduceOp.SUM):
        raise Unsupported(f"of sparse tensors mpicoll knows the sum alone, not {opts.reduceOp}")
    level = group.level()
    own = tensor.detach().coalesce()
    counts = numpy.empty(level.comm.Get_size(), numpy.int64)
    level.run("Allgather", (numpy.array([own._nnz()]), counts), counts, ())
    indices = _gathered(group, plain(own.indices().t()), counts)
    values = _gathered(group, plain(own.values()), counts)
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, device=values.device)
    with torch.inference_mode():
        tensor.copy_(total.coalesce())
    return Done([tensor])


def _gathered(group: Calls, rows: torch.Tensor, counts: numpy.ndarray[Any, Any]) -> torch.Tensor:
    """The rows of all ranks, in their order."""
    whole = rows.new_empty((int(counts.sum()), *rows.shape[1:]))
    width = rows[:1].numel() if len(rows) else whole[:1].numel()
    nbytes = width * rows.element_size()
    send = group.array(rows).view("u1")
    receive = [group.array(whole).view("u1"), [int(count) * nbytes for count in counts]]
    group.level().run("Allgatherv", (send, receive), (rows, whole), ())
    return whole
