"""When a rank started each message of a call, waited for it, and computed: for timelines."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..support.events import Event
from .program import Fetch, Instruction, Put


class Tracer:
    """Events of all plans that are bound while a context has it; those bound before, and all others, cost nothing.

    compute: what is reduced or copied. wait: until a message is through. send, receive: from when a message is started until
    this rank has waited for it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.begun: dict[int, float] = {}  # by the id of an instruction, which lives as long as its plan

    def timed(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        """The same function, told as computing; its last argument is where the result goes, or what is copied there."""

        def timed(*arguments: Any) -> None:
            begin = perf_counter()
            function(*arguments)
            self.events.append(Event("compute", name, begin, perf_counter(), {"bytes": arguments[-1].nbytes}))

        return timed

    def noted(self, one: Instruction, maker: Callable[[Instruction], Any]) -> Callable[[Instruction], Any]:
        """The same maker, of starts that note when."""

        def make(placed: Instruction) -> Callable[[int], Any]:
            start = maker(placed)

            def begin(tag: int) -> Any:
                self.begun[id(one)] = perf_counter()
                return start(tag)

            return begin

        return make

    def through(self, one: Instruction, begin: float) -> None:
        """A message was waited for, from `begin` until now."""
        now = perf_counter()
        facts = {"bytes": one.nbytes}
        kind, wait, name = _words(one)
        self.events.append(Event("wait", wait, begin, now, facts))
        if one.is_message:
            self.events.append(Event(kind, name, self.begun[id(one)], now, facts))


def _words(one: Instruction) -> tuple[str, str, str]:
    """Of the message that an instruction is: its kind, what waiting for it is called, and its name."""
    if one.kind in (Fetch, Put):
        return "", f"wait for a copy {'from' if one.kind is Fetch else 'to'} the device", ""
    if one.is_sent:
        return "send", f"wait until sent to {one.peer}", f"send to {one.peer}"
    return "receive", f"wait for {one.peer}", f"receive from {one.peer}"
