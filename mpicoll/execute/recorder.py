"""The flight recorder: the last calls of a communicator on this rank, and those it is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import NamedTuple, Protocol

#: calls that are remembered
_KEPT = 32


class Located(Protocol):
    """What knows how far it is. runs_ahead: whether other messages of it are on their way while one is awaited.

    step: which of its steps it is in, where it has any.
    """

    @property
    def runs_ahead(self) -> bool: ...

    @property
    def step(self) -> int | None: ...

    @property
    def unfinished(self) -> bool:
        """Whether messages of it may be on their way."""
        ...

    def where(self) -> str:
        """Round, peer and bytes."""
        ...

    def peer(self) -> int | None:
        """The rank whose message it waits for, as numbered in the communicator, or None."""
        ...


#: told of every call that ends: its text, of how many ranks, what served it (None: MPI), seconds
ENDED: list[Callable[[str, int, Located | None, float], object]] = []


class Past(NamedTuple):
    """A call that has ended, well or not."""

    number: int
    text: str
    ended: float


class Record:
    """A call under way. number: among those of its communicator. text: what it is. begun: `perf_counter`.

    plan: where it stands, while a schedule serves it. site: "file:line", "" where it can be read off the thread's stack.
    """

    __slots__ = ("recorder", "number", "text", "thread", "begun", "plan", "site")

    def __init__(self, recorder: Recorder, site: str) -> None:
        self.recorder, self.site = recorder, site
        self.plan: Located | None = None
        self.number = 0  # it is not under way
        self.text, self.thread, self.begun = "", 0, 0.0

    def begin(self, text: str) -> Record:
        """It is under way."""
        self.recorder.count = self.number = self.recorder.count + 1
        self.text, self.thread, self.begun = text, get_ident(), perf_counter()
        return self

    def end(self) -> None:
        """It has ended."""
        recorder, now = self.recorder, perf_counter()
        recorder.past.append(Past(self.number, self.text, now))
        for tell in ENDED:
            tell(self.text, recorder.size, self.plan, now - self.begun)
        if recorder.others:
            recorder.others.pop(self.number, None)
        self.number, self.plan = 0, None

    def where(self) -> str:
        """How far it is."""
        plan = self.plan
        return plan.where() if plan is not None else ""

    def peer(self) -> int | None:
        """Whom it waits for, where that is known."""
        plan = self.plan
        return plan.peer() if plan is not None else None


class Recorder:
    """The calls of a communicator. size: its ranks. past: the last that ended, the oldest first.

    blocking: the record of its blocking calls. others: those under way that do not block, by number.

    Blocking calls on one communicator never overlap, and should cost nothing: they have one record, used again.
    """

    def __init__(self, size: int) -> None:
        self.count, self.size = 0, size
        self.past: deque[Past] = deque(maxlen=_KEPT)
        self.blocking = Record(self, "")
        self.others: dict[int, Record] = {}

    def begin(self, text: str, site: str) -> Record:
        """A call begins that does not block; `site`: where."""
        record = Record(self, site).begin(text)
        self.others[record.number] = record
        return record

    @property
    def under_way(self) -> list[Record]:
        """The calls that have begun and not ended, the oldest first."""
        records = [self.blocking, *list(self.others.values())]
        return sorted((one for one in records if one.number), key=lambda one: one.number)
