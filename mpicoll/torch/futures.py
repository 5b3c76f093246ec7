"""Futures whose callbacks may begin calls of their own, and wait for them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from ..communicator import Communicator
from ..progress import PROGRESS


class Callbacks(Protocol):
    """A level: it runs callbacks in order."""

    #: the communicator of its calls
    comm: Communicator

    def call_back(self, future: Future, callback: Callable[[], object]) -> None:
        """Call it when the future is complete, after the callbacks registered before."""


class Future(torch.futures.Future):  # type: ignore[type-arg]
    """A future whose `wait`, in any thread, advances its call; `then` returns such a future.

    level: of the call; None: callbacks run at once. wait_for_call: waits for the end of the call.
    result: of the call; None for a future of `then`, which gets it from the callback.
    """

    def __init__(
        self,
        level: Callbacks | None,
        wait_for_call: Callable[[], object],
        result: list[Any] | None = None,
    ) -> None:
        super().__init__()
        self._level = level
        self._wait_for_call = wait_for_call
        self._result = result
        #: empty once it is complete: of threads that complete it, a single one pops the item
        self._open = [True]

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Complete it; later calls do nothing."""
        try:
            self._open.pop()
        except IndexError:
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)

    def wait(self) -> Any:
        """The result; raises the error. It does not wait for the callbacks of other futures."""
        if self.done():
            return super().wait()
        if self._result is not None:
            self._wait_for_call()
            return self._result
        with suppress(Exception):  # the callback gets the error
            self._wait_for_call()
        PROGRESS.wait_until(self.done)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """A future of what the callback returns; it is called when this future is complete."""
        future = Future(self._level, self._wait_for_call)

        def run() -> None:
            try:
                future.set_result(callback(self))
            except Exception as error:
                future.set_exception(error)

        self._call_back(run)
        return future

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call it when this future is complete; its error is printed."""

        def run() -> None:
            try:
                callback(self)
            except Exception:
                traceback.print_exc()

        self._call_back(run)

    def _call_back(self, callback: Callable[[], object]) -> None:
        if self._level is None:
            super().add_done_callback(lambda complete: callback())
        else:
            self._level.call_back(self, callback)
