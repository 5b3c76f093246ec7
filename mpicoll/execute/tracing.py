"""When a rank started each message of a call, waited for it, and computed: for timelines."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..binding import Fetch, Instruction, Put
from ..support.events import Event


class Tracer:
    """Events of all plans that are bound while a context has it; all other plans cost nothing.

    Kinds of events: "compute", a reduction or a copy; "wait", until a message is done; "send" and
    "receive", from the start of a message until this rank has waited for it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        #: the start, by the id of an instruction, which lives as long as its plan
        self.begun: dict[int, float] = {}

    def timed(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        """The same function, recorded as "compute"; its last argument is as large as the result."""

        def timed(*arguments: Any) -> None:
            begin = perf_counter()
            function(*arguments)
            facts = {"bytes": arguments[-1].nbytes}
            self.events.append(Event("compute", name, begin, perf_counter(), facts))

        return timed

    def noted(
        self, piece: Instruction, maker: Callable[[Instruction], Any]
    ) -> Callable[[Instruction], Any]:
        """The same maker, of functions that record their start."""

        def make(placed: Instruction) -> Callable[[int], Any]:
            start = maker(placed)

            def begin(tag: int) -> Any:
                self.begun[id(piece)] = perf_counter()
                return start(tag)

            return begin

        return make

    def through(self, piece: Instruction, begin: float) -> None:
        """A message was waited for, from `begin` until now."""
        now = perf_counter()
        facts = {"bytes": piece.nbytes}
        kind, wait, name = _words(piece)
        self.events.append(Event("wait", wait, begin, now, facts))
        if piece.is_message:
            self.events.append(Event(kind, name, self.begun[id(piece)], now, facts))


def _words(piece: Instruction) -> tuple[str, str, str]:
    """The kind of event of a message or copy, the name of waiting for it, and its own name."""
    if piece.kind in (Fetch, Put):
        return "", f"wait for a copy {'from' if piece.kind is Fetch else 'to'} the device", ""
    if piece.is_sent:
        return "send", f"wait until sent to {piece.peer}", f"send to {piece.peer}"
    return "receive", f"wait for {piece.peer}", f"receive from {piece.peer}"
