"""How calls of a process group are served, and asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..communicator import Communicator
from .levels import Level, depth_of_this_thread, levels_of
from .memory import Arrays, Finish, check_types
from .works import Done

_dist: Any = torch.distributed
Tensors = list[torch.Tensor]
_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled
_IDLE: AbstractContextManager[object] = nullcontext()


class Calls:
    """A process group, as its collectives know it. comm: that of its calls outside of callbacks."""

    comm: Communicator

    def _take(self, comm: Communicator) -> None:
        self.comm = comm
        self._levels = levels_of(comm)
        self.array = Arrays().of
        self._size, self._rank = comm.Get_size(), comm.Get_rank()

    def level(self) -> Level:
        """Where this thread begins calls."""
        return self._levels[depth_of_this_thread()]

    def serve(
        self, name: str, method: str, given: Sequence[Any], opts: Any, result: list[Any], kept: object,
        finishes: Sequence[Finish] = (), algorithm: str | None = None,
    ) -> Any:  # fmt: skip
        """Serve a call by a method of `Communicator`; returns its work.

        name: of the call, in profiles. result: of the work. kept: must live as long as the call. finishes: its last steps.
        algorithm: as of the method.
        """
        level = self.level()
        with _span(name):
            if getattr(opts, "asyncOp", True):
                return level.begin(method, given, result, kept, finishes, algorithm)
            level.run(method, given, kept, finishes, algorithm)
        return Done(result)

    def check_blocks(self, name: str, parts: Any, equal: torch.Tensor | None = None) -> None:
        """One tensor for each rank, of the same type; equal: and as large as this one."""
        if len(parts) != self._size:
            raise ValueError(f"{name}: expected {self._size} tensors, one per rank, got {len(parts)}")
        check_types(name, *parts, *(() if equal is None else (equal,)))
        if equal is not None and any(one.numel() != equal.numel() for one in parts):
            raise ValueError(f"{name}: expected tensors of {equal.numel()} elements, got {[one.numel() for one in parts]}")


def _span(name: str) -> AbstractContextManager[object]:
    """In PyTorch's profiles."""
    return torch.profiler.record_function(f"mpicoll:{name}") if _is_profiling() else _IDLE


def options_of(given: Any, kind: Any, root: Any = None, op: Any = None) -> Any:
    """PyTorch's options of a call. Users of groups may give a root, an operation, or nothing."""
    if isinstance(given, kind):
        return given
    options = kind()
    if isinstance(given, (_dist.ReduceOp, _dist.ReduceOp.RedOpType)):
        op = given
    elif given is not None:
        root = given if isinstance(given, int) else root
    if root is not None:
        options.rootRank = root
    if op is not None:
        options.reduceOp = op
    return options


def inner(lists: Any) -> Any:
    """The tensors of a call, which come in a list or in a list of one list."""
    return lists[0] if lists and isinstance(lists[0], (list, tuple)) else lists


def one_of(tensors: Any) -> torch.Tensor:
    """The tensor of a call, which comes alone or in a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor on each rank, got {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor
