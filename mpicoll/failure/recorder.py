"""The flight recorder: the last calls of this process, and those that a communicator is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple, Protocol, runtime_checkable
from zlib import crc32

from ..support.callsite import Site, site_text
from ..support.ledger import Ledger

#: calls that are remembered, of all communicators together
KEPT = 1000
#: calls after which places may be counted anew
_APART = 1 << 40


class Located(Protocol):
    """What can tell its progress. step: the step that it is in, where it has steps.

    runs_ahead: whether other messages of it are on their way while one is awaited.
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
        """The rank of the communicator that sends the awaited message, or None."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A call that may go on where an exception has interrupted it between two steps."""

    def rest(self) -> Iterator[Any] | None:
        """The requests that are still to be awaited; None: it cannot go on."""
        ...


#: told of every call that ends: its text, of how many ranks, what served it (None: MPI), seconds
ENDED: list[Callable[[str, int, Located | None, float], object]] = []


class Mark(bytes):
    """A hash of a call in 8 bytes, the same on all ranks; `text`: the call in words."""

    text: str


@lru_cache(maxsize=4096)
def mark_of(text: str) -> Mark:
    """The mark of a call in words."""
    mark = Mark(blake2b(text.encode(), digest_size=8).digest())
    mark.text = text
    return mark


class Past(NamedTuple):
    """A call that has ended, well or not.

    communicator: its name. place, number, site: see `Record`. served: the name of the plan, ""
    where MPI served it.
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


#: of `Past`, the oldest first; plain tuples, which take a quarter of the time to make
_PAST: deque[tuple[str, int, int, str, str, Site, float, float]] = deque(maxlen=KEPT)


class _Passed(NamedTuple):
    """Calls in a row that were not recorded."""

    communicator: str
    #: the place of the last
    last: int
    marks: tuple[Mark, ...]
    #: when all of them had begun
    seen: float

    def placed(self) -> dict[int, Mark]:
        """The calls by place."""
        return dict(enumerate(self.marks, self.last - len(self.marks) + 1))


#: the oldest first
_PASSED: deque[_Passed] = deque(maxlen=KEPT // 10)
#: where they were made
_NOT_KNOWN = "a line that is not recorded"


def remembered(recorder: Recorder) -> dict[int, tuple[str, str]]:
    """{place: (what, where)} of the last calls on a communicator, also of those not recorded."""
    calls: dict[int, tuple[str, str]] = {}
    communicator = recorder.name
    for passed in [*_PASSED.copy(), recorder.last_passed]:
        if passed.communicator == communicator:
            for place, mark in passed.placed().items():
                calls[place] = mark.text, ", a repeated call whose line is not recorded"
    for call in past():
        if call.place and call.communicator == communicator:
            calls[call.place] = call.text, f" at {call.line}"
    return calls


def past() -> list[Past]:
    """The last calls of this process that have ended, the oldest first."""
    return [Past._make(fields) for fields in _PAST.copy()]


def past_with_passed(recorders: Iterable[Recorder]) -> list[Past]:
    """The same, and the last calls that were not recorded; their times are the latest possible.

    recorders: of all communicators.
    """
    rows = [*_PASSED.copy(), *[recorder.last_passed for recorder in recorders]]
    passed = [
        Past(row.communicator, place, place, mark.text, "", _NOT_KNOWN, row.seen, row.seen)
        for row in rows
        for place, mark in row.placed().items()
    ]
    return sorted([*passed[-KEPT:], *past()], key=lambda call: call.begun)


class Record:
    """A call under way."""

    __slots__ = (
        "recorder", "number", "place", "sequence", "text", "thread", "begun", "plan", "site",
    )  # fmt: skip

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        #: where it is made, "" where the stack of its thread tells
        self.site: Site = ""
        #: its progress, while a schedule serves it
        self.plan: Located | None = None
        #: its number among the calls of its communicator; 0: it is not under way
        self.number = 0
        #: its number among those that all ranks make in the same order; 0: it is none of those
        self.place = 0
        #: see `Recorder`, up to this call
        self.sequence = 0
        #: the call in words
        self.text = ""
        self.thread = 0
        #: `perf_counter`
        self.begun = 0.0

    def begin(self, text: str, site: Site = "", ordered: bool = True) -> Record:
        """It is under way. ordered: whether all ranks make it at the same place in their calls."""
        recorder = self.recorder
        recorder.count = self.number = recorder.count + 1
        if ordered:
            self.enter(text)
        else:
            self.text = text
        self.site = site
        self.thread = get_ident()
        self.begun = perf_counter()
        return self

    def enter(self, text: str) -> None:
        """Give it its place, which is the same on all ranks that make the same calls."""
        recorder = self.recorder
        self.text = text
        if recorder.passed:  # asked here: a call to ask there is slower
            recorder.remember_passed()
        recorder.places = self.place = recorder.places + 1
        if recorder.is_hashed:
            recorder.sequence = self.sequence = crc32(mark_of(text), recorder.sequence)

    def resume(self, text: str) -> Record:
        """It is under way since the last place was given."""
        recorder = self.recorder
        recorder.remember_passed()
        recorder.is_passing = False
        self.text = text
        self.site = ""
        self.number = recorder.count
        self.place = recorder.places
        self.sequence = recorder.sequence
        self.thread = get_ident()
        self.begun = perf_counter()
        return self

    def end(self) -> None:
        """It has ended, if it has begun."""
        if not self.number:
            return
        recorder = self.recorder
        plan = self.plan
        now = perf_counter()
        served = "" if plan is None else getattr(plan, "name", "")
        _PAST.append(
            (recorder.name, self.place, self.number, self.text, served, self.site, self.begun, now)
        )
        for tell in ENDED:
            tell(self.text, recorder.size, plan, now - self.begun)
        if recorder.others:
            recorder.others.pop(self.number, None)
        self.number = 0
        self.place = 0
        self.plan = None

    def where(self) -> str:
        """Its round, peer and bytes."""
        plan = self.plan
        return plan.where() if plan is not None else ""

    def peer(self) -> int | None:
        """The rank that it waits for, where that is known."""
        plan = self.plan
        return plan.peer() if plan is not None else None


class Recorder(Ledger):
    """The calls of a communicator.

    count: calls begun so far. places: those of them that have places. sequence: a hash of these, in
    their order, where `is_hashed`. is_closed: no call may pass through a door (`engine`). every: of
    so many calls, one is compared, 0: none; compared_at: the place of the last one that was.
    """

    def __init__(self, name: str, size: int) -> None:
        #: by which reports know the communicator
        self.name = name
        #: its ranks
        self.size = size
        #: the record of all blocking calls: they never overlap, and should cost nothing
        self.blocking = Record(self)
        #: the nonblocking calls under way, by number
        self.others: dict[int, Record] = {}
        self.is_hashed = True
        #: the last calls that were not recorded, as they passed through doors or MPI began them
        self.passed: list[Mark] = []

    def enter_passed(self, text: str) -> None:
        """Give a call its place that is not recorded otherwise."""
        if len(self.passed) >= KEPT:
            self.remember_passed()
        mark = mark_of(text)
        self.passed.append(mark)
        self.count += 1
        self.places += 1
        if self.is_hashed:
            self.sequence = crc32(mark, self.sequence)

    @property
    def last_passed(self) -> _Passed:
        """The last calls that were not recorded."""
        while True:
            last = self.places
            marks = tuple(self.passed)
            if last == self.places:  # else the program has made a call meanwhile
                return _Passed(self.name, last, marks, perf_counter())

    def remember_passed(self) -> None:
        """Remember the calls that were not recorded, before one that is has a place."""
        if self.passed:
            _PASSED.append(self.last_passed)
            self.passed.clear()

    def compare_every(self, calls: int) -> None:
        """Have one of so many calls compared; 0: none."""
        self.every = calls
        self.compared_at = self.places

    def is_due(self, place: int) -> bool:
        """Whether the call at this place is compared, if ranks compare one of so many like it."""
        return place - self.compared_at >= self.every

    def compared(self, place: int) -> None:
        """The call at this place is compared with those of the other ranks."""
        self.compared_at = max(place, self.compared_at)

    @property
    def has_uncompared(self) -> bool:
        """Whether there were calls since one was compared."""
        return self.places > self.compared_at

    def restart(self) -> None:
        """Count places anew, from a number that is the same on all ranks.

        Not all calls so far were counted on each rank.
        """
        self.places = self.compared_at = (self.places // _APART + 1) * _APART
        self.sequence = 0

    def begin(
        self, text: str, site: Site, ordered: bool = True, record: Record | None = None
    ) -> Record:
        """A nonblocking call begins. site: where; ordered: see `Record.begin`; record: its own."""
        record = (record or Record(self)).begin(text, site, ordered)
        self.others[record.number] = record
        return record

    def resume(self, text: str, site: Site) -> Record:
        """A nonblocking call is under way since the last place was given."""
        record = Record(self).resume(text)
        record.site = site
        self.others[record.number] = record
        return record

    @property
    def under_way(self) -> list[Record]:
        """The calls that have begun and not ended, the oldest first."""
        records = [self.blocking, *list(self.others.values())]
        if self.is_passing:
            passed = self.last_passed
            passing = Record(self)
            passing.number = self.count
            passing.place = passed.last
            passing.text = passed.marks[-1].text if passed.marks else ""
            passing.thread = self.thread
            passing.begun = perf_counter()
            records.append(passing)
        return sorted(
            (record for record in records if record.number), key=lambda record: record.number)
