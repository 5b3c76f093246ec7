"""Works, which calls return: of a call that has ended, of a call under way, of several calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ..communicator import Communicator
from ..errors import CollectiveTimeout
from ..execute import Context
from ..failure import ABANDONED
from ..progress import PROGRESS, Task
from .futures import Callbacks, Future

_TorchWork: Any = torch._C._distributed_c10d.Work
_UNSET = timedelta(milliseconds=-1)
_engine: Any = torch.autograd.Variable._execution_engine
#: seconds without progress after which a call is left to the thread that advances the calls for
#: which no thread waits
_STILL = 5e-3


class Done(_TorchWork):
    """A call that has ended."""

    def __init__(self, result: list[Any]) -> None:
        super().__init__()
        self._result = result

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> BaseException | None:
        """None."""
        return None

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """True, at once."""
        return True

    synchronize = wait
    block_current_stream = wait

    def result(self) -> list[Any]:
        """The tensors that it wrote."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is complete."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


class CollectiveWork(_TorchWork):
    """A collective under way. memory: must live as long as it."""

    #: set once the collective was begun
    task: Task

    def __init__(self, level: Callbacks, result: list[Any], memory: object) -> None:
        super().__init__()
        self.level = level
        self._result = result
        self._memory = memory
        self._future: Future | None = None
        #: whether `complete` was called
        self.is_over = False

    # For PyTorch.

    def is_completed(self) -> bool:
        """Whether it has ended, with or without an error."""
        return bool(self.task.ended)

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self.task.error is None

    def exception(self) -> BaseException | None:
        """The error that ended it."""
        return self.task.error

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """Wait for its end; raises its error.

        CollectiveTimeout, which says which ranks wait for which, after `timeout`.
        """
        if timeout > timedelta(0):
            self.wait_for(timeout.total_seconds())
        else:
            PROGRESS.wait(self.task)
        return True

    synchronize = wait
    block_current_stream = wait

    def wait_for(self, seconds: float) -> None:
        """Wait for so many seconds at most. Raises CollectiveTimeout."""
        if not PROGRESS.wait(self.task, seconds):
            raise timed_out(self.level.comm, seconds)

    def result(self) -> list[Any]:
        """The tensors that it writes."""
        return self._result

    def get_future(self) -> Future:
        """A future of the result, completed after those of works begun before."""
        if self._future is None:
            self._future = Future(self.level, self.wait, self._result)
            if self.is_over:  # maybe since the line before
                self.complete()
            elif torch._C._current_graph_task_id() != -1:
                # DistributedDataParallel waits for it in C++ at the end of backward
                _engine.queue_callback(self._help)
        return self._future

    def _help(self) -> None:
        """Advance it, before a wait in C++ that does not.

        Not until its end: other ranks may begin the call only after something that this rank does
        after backward.
        """
        if PROGRESS.threaded:
            PROGRESS.help(self.task, _STILL)
        else:
            self.wait()

    # For its level.

    def complete(self) -> None:
        """Complete its future, if it has one."""
        self.is_over = True
        if self.task.error is not None:
            ABANDONED.append(self._memory)  # MPI may still write there
        self._memory = None
        if self._future is not None:
            self._future.complete(self._result, self.task.error)

    def drop_tensors(self) -> None:
        """Drop result and future, which have no user any more."""
        self._result = []
        self._future = None


def timed_out(comm: Communicator, seconds: float) -> CollectiveTimeout:
    """The error of a call that has waited for so many seconds."""
    context = Context.of(comm)
    return CollectiveTimeout(Context.explain_wait(context, seconds))


class Works(Done):
    """Several works, as a single work."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended without an error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """The first error that ended one of them."""
        errors = (work.exception() for work in self._works)
        return next(filter(None, errors), None)

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """Wait for all."""
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = wait
    block_current_stream = wait

    def get_future(self) -> Future:
        """A future that is completed with the last work's: a level completes them in order."""
        last = self._works[-1].get_future()
        future = Future(getattr(last, "_level", None), self.wait, self._result)

        def complete(last: object) -> None:
            future.complete(self._result, self.exception())

        torch.futures.Future.add_done_callback(last, complete)
        return future
