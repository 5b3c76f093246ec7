"""When a rank started each message of a call, waited for it, and computed: for timelines."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..support.events import Event
from .ordering import Fetch, Piece, Put, Spans, Starter


class Tracer:
    """Events of all plans that are bound while a context has it; those bound before, and all others, cost nothing.

    compute: what is reduced or copied. wait: until a message is through. send, receive: from when a message is started until
    this rank has waited for it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.begun: dict[int, float] = {}  # by the id of a piece, which lives as long as its plan

    def timed(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        """The same function, told as computing; its last argument is where the result goes, or what is copied there."""

        def timed(*arguments: Any) -> None:
            begin = perf_counter()
            function(*arguments)
            self.events.append(Event("compute", name, begin, perf_counter(), {"bytes": arguments[-1].nbytes}))

        return timed

    def starter(self, starter: Starter, piece: Piece) -> Callable[[Spans], Callable[[int], Any]]:
        """The same `Starter`, which notes when."""
        made = starter(piece)

        def noted(spans: Spans) -> Callable[[int], Any]:
            start = made(spans)

            def begin(tag: int) -> Any:
                self.begun[id(piece)] = perf_counter()
                return start(tag)

            return begin

        return noted

    def through(self, piece: Piece, begin: float) -> None:
        """A message was waited for, from `begin` until now."""
        now = perf_counter()
        facts = {"bytes": piece.work.nbytes}
        kind, wait, name = _words(piece)
        self.events.append(Event("wait", wait, begin, now, facts))
        if piece.is_message:
            self.events.append(Event(kind, name, self.begun[id(piece)], now, facts))


def _words(piece: Piece) -> tuple[str, str, str]:
    """Of the message that a piece is: its kind, what waiting for it is called, and its name."""
    if piece.kind in (Fetch, Put):
        return "", f"wait for a copy {'from' if piece.kind is Fetch else 'to'} the device", ""
    if piece.is_sent:
        return "send", f"wait until sent to {piece.peer}", f"send to {piece.peer}"
    return "receive", f"wait for {piece.peer}", f"receive from {piece.peer}"
