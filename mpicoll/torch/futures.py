"""Futures whose callbacks may begin calls of their own, and wait for them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from ..communicator import Communicator
from ..execute import PROGRESS


class Callbacks(Protocol):
    """What calls back, each in its turn. comm: where calls are begun."""

    comm: Communicator

    def call_back(self, future: Future, callback: Callable[[], object]) -> None:
        """Call it when the future is complete, after those that were given before."""


class Future(torch.futures.Future):  # type: ignore[type-arg]
    """A future whose `wait` advances what it waits for, in whatever thread; so do those of what `then` makes of it.

    ended: waits for the end of the call that is behind it. result: of that call; None: of a callback, known in time.
    level: of that call; None: its callbacks are called at once.
    """

    def __init__(self, level: Callbacks | None, ended: Callable[[], object], result: list[Any] | None = None) -> None:
        super().__init__()
        self._level, self._ended, self._result = level, ended, result
        self._open = [True]

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Complete it, the first time."""
        try:
            self._open.pop()
        except IndexError:
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)

    def wait(self) -> Any:
        """The result; raises what went wrong. It does not wait for the callbacks of others."""
        if self.done():
            return super().wait()
        if self._result is not None:
            self._ended()
            return self._result
        with suppress(Exception):  # callbacks are told
            self._ended()
        PROGRESS.wait_until(self.done)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """That of what the callback makes of this one, once it is complete."""
        made = Future(self._level, self._ended)

        def run() -> None:
            try:
                made.set_result(callback(self))
            except Exception as error:
                made.set_exception(error)

        self._call_back(run)
        return made

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call it, once this one is complete; what it raises is shown."""

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
