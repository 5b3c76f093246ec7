"""The flight recorder: the last calls of this process, and those that a communicator is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from threading import get_ident
from time import perf_counter
from typing import NamedTuple, Protocol
from zlib import crc32

from ..support.callsite import Site, site_text

#: calls that are remembered, of all communicators together
KEPT = 1000
#: calls after which places may be counted anew
_APART = 1 << 40


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


class Mark(bytes):
    """What a call is, in 8 bytes that are the same on all ranks; `text` has it in words."""

    text: str


@lru_cache(maxsize=4096)
def mark_of(text: str) -> Mark:
    """That of a call in words."""
    mark = Mark(blake2b(text.encode(), digest_size=8).digest())
    mark.text = text
    return mark


class Past(NamedTuple):
    """A call that has ended, well or not.

    communicator: its name. place, number, site: see `Record`. served: the name of the plan, "" where MPI served it.
    """

    communicator: str
    place: int
    number: int
    text: str
    served: str
    site: Site
    begun: float
    ended: float

    @property
    def line(self) -> str:
        """Where the call was made, "file:line"."""
        return site_text(self.site)


#: of `Past`, the oldest first; plain tuples, which are made in a quarter of the time
_PAST: deque[tuple[str, int, int, str, str, Site, float, float]] = deque(maxlen=KEPT)


#: (communicator, place of the last, what they were) of calls in a row that were not looked at, the oldest first
_UNSEEN: deque[tuple[str, int, tuple[Mark, ...]]] = deque(maxlen=KEPT // 10)


def remembered(communicator: str) -> dict[int, tuple[str, str]]:
    """{place: (what, where)} of the last calls on a communicator, also of those that were not looked at."""
    found: dict[int, tuple[str, str]] = {}
    for name, last, marks in _UNSEEN.copy():
        if name == communicator:
            told = [(mark.text, ", a small call whose line is not recorded") for mark in marks]
            found.update(enumerate(told, last - len(marks) + 1))
    for one in past():
        if one.place and one.communicator == communicator:
            found[one.place] = one.text, f" at {one.line}"
    return found


def past() -> list[Past]:
    """The last calls of this process that have ended, the oldest first."""
    return [Past._make(one) for one in _PAST.copy()]


class Record:
    """A call under way. number: among those of its communicator. text: what it is. begun: `perf_counter`.

    place: its number among the calls that all ranks of the communicator make in the same order, 0 where it is none of those.
    sequence: see `Recorder`, up to this call.
    plan: where it stands, while a schedule serves it. site: where it is made, "" where it can be read off the thread's stack.
    """

    __slots__ = ("recorder", "number", "place", "sequence", "text", "thread", "begun", "plan", "site")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.site: Site = ""
        self.plan: Located | None = None
        self.number = self.place = self.sequence = 0  # it is not under way
        self.text, self.thread, self.begun = "", 0, 0.0

    def begin(self, text: str, site: Site = "", ordered: bool = True) -> Record:
        """It is under way. ordered: whether all ranks make it at the same place among their calls."""
        recorder = self.recorder
        recorder.count = self.number = recorder.count + 1
        if ordered:
            self.enter(text)
        else:
            self.text = text
        self.site, self.thread, self.begun = site, get_ident(), perf_counter()
        return self

    def enter(self, text: str) -> None:
        """Give it its place, which is the same on all ranks that make the same calls.

        text: what it is.
        """
        recorder = self.recorder
        self.text = text
        if recorder.unseen:  # faster than to ask there
            recorder.enter_unseen()
        recorder.places = self.place = recorder.places + 1
        if recorder.is_hashed:
            recorder.sequence = self.sequence = crc32(mark_of(text), recorder.sequence)
        if recorder.every:
            recorder.measure_room()

    def end(self) -> None:
        """It has ended."""
        recorder, plan, now = self.recorder, self.plan, perf_counter()
        served = "" if plan is None else getattr(plan, "name", "")
        _PAST.append((recorder.name, self.place, self.number, self.text, served, self.site, self.begun, now))
        for tell in ENDED:
            tell(self.text, recorder.size, plan, now - self.begun)
        if recorder.others:
            recorder.others.pop(self.number, None)
        self.number, self.place, self.plan = 0, 0, None

    def where(self) -> str:
        """How far it is."""
        plan = self.plan
        return plan.where() if plan is not None else ""

    def peer(self) -> int | None:
        """Whom it waits for, where that is known."""
        plan = self.plan
        return plan.peer() if plan is not None else None


class Recorder:
    """The calls of a communicator. name: by which reports know it; size: its ranks. count, places: of calls begun so far.

    blocking: the record of its blocking calls. others: those under way that do not block, by number.

    Blocking calls on one communicator never overlap, and should cost nothing: they have one record, used again.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.count = self.places = 0
        self.blocking = Record(self)
        self.others: dict[int, Record] = {}
        #: a hash of the calls that have places, in their order
        self.sequence = 0
        self.is_hashed = True
        #: calls that went to MPI without being looked at, and have no places yet; room for so many
        self.unseen: list[Mark] = []
        self.room = [KEPT]
        #: of so many calls, one is looked at and compared (0: none); the place of the last that was
        self.every = 0
        self.compared_at = 0

    def enter_unseen(self) -> None:
        """Give those calls their places, before that of the next one."""
        if not self.unseen:
            return
        self.places += len(self.unseen)
        if self.is_hashed:
            self.sequence = crc32(b"".join(self.unseen), self.sequence)
        _UNSEEN.append((self.name, self.places, tuple(self.unseen)))
        self.unseen.clear()

    def make_room(self) -> bool:
        """Make room for calls that are not looked at; whether the last one may stay one of them."""
        last = self.unseen.pop()
        if self.every:
            return False
        self.enter_unseen()
        self.unseen.append(last)  # which MPI may refuse
        return True

    @property
    def may_pass(self) -> bool:
        """Whether the next call need not be looked at, if it is a small one."""
        return not self.every or len(self.unseen) + 1 < self.room[0]

    def measure_room(self) -> None:
        """Say how many calls may follow before one is compared."""
        self.room[0] = self.every - (self.places - self.compared_at)

    def compare_every(self, calls: int) -> None:
        """Have one of so many calls looked at; 0: none."""
        self.enter_unseen()
        self.every, self.compared_at, self.room[0] = calls, self.places, calls or KEPT

    def compared(self, place: int) -> None:
        """The call at this place is compared with those of the other ranks."""
        self.compared_at = max(place, self.compared_at)
        if self.every:
            self.measure_room()

    @property
    def has_uncompared(self) -> bool:
        """Whether there were calls since one was compared."""
        return bool(self.unseen) or self.places > self.compared_at

    def restart(self) -> None:
        """Count places anew, from a number that is the same on all ranks: not all calls so far were seen on each of them."""
        self.enter_unseen()
        self.places = self.compared_at = (self.places // _APART + 1) * _APART
        self.sequence = 0

    def begin(self, text: str, site: Site, ordered: bool = True) -> Record:
        """A call begins that does not block; `site`: where. ordered: see `Record.begin`."""
        record = Record(self).begin(text, site, ordered)
        self.others[record.number] = record
        return record

    @property
    def under_way(self) -> list[Record]:
        """The calls that have begun and not ended, the oldest first."""
        records = [self.blocking, *list(self.others.values())]
        return sorted((one for one in records if one.number), key=lambda one: one.number)
