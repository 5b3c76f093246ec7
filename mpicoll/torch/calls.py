"""How calls of a process group are served, and asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..communicator import Communicator
from ..execute import ABANDONED
from .levels import INSIDE, Level
from .memory import Arrays, Finish, finish_all
from .works import Done

Tensors = list[torch.Tensor]
_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled
_IDLE: AbstractContextManager[object] = nullcontext()


class Calls:
    """A process group, as its collectives know it. comm: that of its calls outside of callbacks."""

    comm: Communicator

    def _take(self, comm: Communicator) -> None:
        self.comm = comm
        self._levels = [Level(comm, 0)]
        self.array = Arrays().of
        self._size, self._rank = comm.Get_size(), comm.Get_rank()

    def level(self) -> Level:
        """Where this thread begins calls: callbacks of futures have communicators of their own, made when they need one."""
        while len(self._levels) <= INSIDE.depth:
            self._levels.append(Level(self._levels[-1].comm.Dup(), len(self._levels)))
        return self._levels[INSIDE.depth]

    def serve(
        self, name: str, method: str, given: Sequence[Any], opts: Any, result: list[Any], kept: object,
        finishes: Sequence[Finish] = (),
    ) -> Any:  # fmt: skip
        """Serve a call by a method of `Communicator`; returns its work.

        name: of the call, in profiles. result: of the work. kept: must live as long as the call. finishes: its last steps.
        """
        level = self.level()
        with _span(name):
            if getattr(opts, "asyncOp", True):
                return level.begin(method, given, result, kept, finishes)
            try:
                getattr(level.comm, method)(*given)
            except BaseException:
                ABANDONED.append(kept)  # MPI may still write there
                raise
            finish = finish_all(finishes)
            if finish is not None:
                finish()
        return Done(result)


def _span(name: str) -> AbstractContextManager[object]:
    """In PyTorch's profiles."""
    return torch.profiler.record_function(f"mpicoll:{name}") if _is_profiling() else _IDLE


def one_of(tensors: Any) -> torch.Tensor:
    """The tensor of a call, which comes alone or in a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor on each rank, got {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor
