"""What calls return: works, for one that has ended, for one under way, for several."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ..communicator import Communicator
from ..errors import CollectiveTimeout
from ..execute import ABANDONED, PROGRESS, Context, Task
from .futures import Callbacks, Future

_Work: Any = torch._C._distributed_c10d.Work
_UNSET = timedelta(milliseconds=-1)
_engine: Any = torch.autograd.Variable._execution_engine
#: seconds without a move after which a call is left to the thread that advances those for which nobody waits
_STILL = 5e-3


class Done(_Work):
    """A call that has ended by now."""

    def __init__(self, result: list[Any]) -> None:
        super().__init__()
        self._result = result

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None."""

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """True, at once."""
        return True

    synchronize = block_current_stream = wait

    def result(self) -> list[Any]:
        """The tensors that it wrote."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """One that is complete."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


class Work(_Work):
    """A collective under way. task: it; set once it was begun. is_over: whether `complete` was called."""

    task: Task

    def __init__(self, level: Callbacks, result: list[Any], kept: object) -> None:
        super().__init__()
        self.level, self._result, self._kept = level, result, kept
        self._future: Future | None = None
        self.is_over = False

    # For PyTorch.

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self.task.ended)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.task.error is None

    def exception(self) -> BaseException | None:
        """What ended it."""
        return self.task.error

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """Wait for its end; raises what went wrong. CollectiveTimeout, with who waits for whom, after so long."""
        if timeout > timedelta(0):
            self.wait_for(timeout.total_seconds())
        else:
            PROGRESS.wait(self.task)
        return True

    synchronize = block_current_stream = wait

    def wait_for(self, seconds: float) -> None:
        """Wait for so long. Raises CollectiveTimeout."""
        if not PROGRESS.wait(self.task, seconds):
            raise timed_out(self.level.comm, seconds)

    def result(self) -> list[Any]:
        """The tensors that it writes."""
        return self._result

    def get_future(self) -> Future:
        """Completed with the result, after those of works begun before."""
        if self._future is None:
            self._future = Future(self.level, self.wait, self._result)
            if self.is_over:  # maybe since it was looked for
                self.complete()
            elif torch._C._current_graph_task_id() != -1:
                # DistributedDataParallel waits for it in C++ at the end of backward
                _engine.queue_callback(self._help)
        return self._future

    def _help(self) -> None:
        """Advance it, before a wait in C++ that does not.

        Not until its end: the other ranks may begin the call only after something that this one does after backward.
        """
        if PROGRESS.threaded:
            PROGRESS.help(self.task, _STILL)
        else:
            self.wait()

    # For its level.

    def complete(self) -> None:
        """Complete its future, if somebody asked for it."""
        self.is_over = True
        if self.task.error is not None:
            ABANDONED.append(self._kept)  # MPI may still write there
        self._kept = None
        if self._future is not None:
            self._future.complete(self._result, self.task.error)

    def drop_tensors(self) -> None:
        """Nobody asks for them any more."""
        self._result, self._future = [], None


def timed_out(comm: Communicator, seconds: float) -> CollectiveTimeout:
    """The error of a call that may not wait for any longer."""
    context = Context.of(comm)
    return CollectiveTimeout(Context.explain_wait(context, seconds))


class Works(Done):
    """Several works, as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return all(work.is_success() for work in self._works)

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """Wait for all."""
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = block_current_stream = wait

    def get_future(self) -> Future:
        """Completed when the last is."""
        last = self._works[-1].get_future()
        made = Future(getattr(last, "_level", None), self.wait, self._result)
        error = lambda: next(filter(None, (work.exception() for work in self._works)), None)
        # a level completes them in order
        torch.futures.Future.add_done_callback(last, lambda complete: made.complete(self._result, error()))
        return made
