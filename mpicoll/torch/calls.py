"""How the collectives of a process group are served, and how their arguments are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..communicator import Communicator
from .levels import CallLevel, depth_of_this_thread, levels_of
from .memory import Arrays, Finish, check_types
from .works import Done

_dist: Any = torch.distributed
Tensors = list[torch.Tensor]
_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled
_NO_SPAN: AbstractContextManager[object] = nullcontext()


class Calls:
    """What the collectives need of their process group. comm: of the calls outside of callbacks."""

    comm: Communicator

    def _use(self, comm: Communicator) -> None:
        self.comm = comm
        self._levels = levels_of(comm)
        self.array = Arrays().of
        self._size = comm.Get_size()
        self._rank = comm.Get_rank()

    def level(self) -> CallLevel:
        """The level on which this thread begins calls."""
        return self._levels[depth_of_this_thread()]

    def serve(
        self,
        name: str,
        method: str,
        arguments: Sequence[Any],
        opts: Any,
        result: list[Any],
        memory: object,
        finishes: Sequence[Finish] = (),
        algorithm: str | None = None,
    ) -> Any:
        """Serve a call by a method of `Communicator`; returns its work.

        name: of the call, in profiles. arguments, algorithm: of the method. result: of the work.
        memory: must live as long as the call. finishes: last steps of the call.
        """
        level = self.level()
        with _span(name):
            if getattr(opts, "asyncOp", True):
                return level.begin(method, arguments, result, memory, finishes, algorithm)
            level.run(method, arguments, memory, finishes, algorithm)
        return Done(result)

    def check_blocks(self, name: str, parts: Any, equal: torch.Tensor | None = None) -> None:
        """Check that there is a tensor per rank, all of one type; equal: and of this size."""
        if len(parts) != self._size:
            raise ValueError(
                f"{name}: expected {self._size} tensors, one per rank, got {len(parts)}"
            )
        if equal is None:
            check_types(name, *parts)
            return
        check_types(name, *parts, equal)
        expected = equal.numel()
        sizes = [part.numel() for part in parts]
        if any(size != expected for size in sizes):
            raise ValueError(f"{name}: expected tensors of {expected} elements, got {sizes}")


def _span(name: str) -> AbstractContextManager[object]:
    """A span in PyTorch's profiles, while it records one."""
    return torch.profiler.record_function(f"mpicoll:{name}") if _is_profiling() else _NO_SPAN


def options_of(opts: Any, kind: Any, root: Any = None, op: Any = None) -> Any:
    """PyTorch's options of a call. Users of groups may pass a root, an operation, or None."""
    if isinstance(opts, kind):
        return opts
    options = kind()
    if isinstance(opts, (_dist.ReduceOp, _dist.ReduceOp.RedOpType)):
        op = opts
    elif isinstance(opts, int):
        root = opts
    if root is not None:
        options.rootRank = root
    if op is not None:
        options.reduceOp = op
    return options


def inner(lists: Any) -> Any:
    """The tensors of a call, which come in a list or in a list of one list."""
    return lists[0] if lists and isinstance(lists[0], (list, tuple)) else lists


def single_tensor(tensors: Any) -> torch.Tensor:
    """The tensor of a call, which comes alone or in a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor on each rank, got {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor
