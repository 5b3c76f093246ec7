"""Ranks whose calls diverge: a message shows it, and the accounts of all ranks say where.

The tag of a schedule's message has a hash of all calls that its rank made so far, so a message of
another sequence of calls is never received. A rank that finds one while it waits sends the others
an account of its calls; each rank that waits answers with its own. Then all ranks have the same
accounts, and find the same first call that is not the same everywhere.

A message alone proves nothing, as numbers of calls are cut to the bits of a tag: only accounts do,
which have whole numbers. A rank that does not answer is in a call of MPI's own, and is named, too.
"""

from __future__ import annotations

import json
import zlib
from itertools import chain
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..failure import owning, remembered
from ..support.callsite import call_site, site_of, site_text
from ..support.checks import groups, ranks_text
from ..support.garbage import frames_of_threads
from ..transport import ACCOUNT, WATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..failure import Record, Recorder
    from ..shared_memory import Links
    from ..transport import Channel

#: seconds between two looks
_EVERY = 0.02
#: the same after a message only seemed to be of another call
_SELDOM = 1.0
#: calls that an account has at most: more take seconds to send and to read
_MOST_CALLS = 4096
#: seconds that ranks have to answer: those that are stuck in a call of MPI's own cannot
_PATIENCE = 3.0


class Account(NamedTuple):
    """What a rank remembers.

    calls: by place, what and where. tags: by number of the call. doing: the calls under way.
    """

    calls: dict[int, tuple[str, str]]
    tags: dict[int, int]
    doing: str

    def packed(self, attempt: int) -> Any:
        """As bytes. attempt: which exchange of accounts it belongs to."""
        rows = [(place, what, where) for place, (what, where) in self.calls.items()]
        text = json.dumps((attempt, rows, list(self.tags.items()), self.doing))
        return np.frombuffer(zlib.compress(text.encode()), np.uint8)

    @classmethod
    def unpacked(cls, words: Any) -> tuple[int, Account]:
        """The attempt, and the account."""
        attempt, rows, tags, doing = json.loads(zlib.decompress(words.tobytes()))
        calls = {place: (what, where) for place, what, where in rows}
        return attempt, cls(calls, dict(tags), doing)


class Accounts:
    """The accounts of one communicator's ranks."""

    def __init__(self, channel: Channel, recorder: Recorder) -> None:
        self._channel = channel
        self._recorder = recorder
        #: which exchange of accounts this is
        self._attempt = 0
        #: accounts of other ranks
        self._heard: dict[int, Account] = {}
        #: (rank, words, request)
        self._receiving: list[tuple[int, Any, MPI.Request]] = []
        #: this rank's own account, once it was sent, and when
        self._own: Account | None = None
        self._given = 0.0
        self._next_look = 0.0

    def look(self, links: Links | None) -> str:
        """How the calls of ranks differ, for a person; "" where there is no sign that they do.

        Called while a call waits.
        """
        now = perf_counter()
        if now < self._next_look:
            return ""
        self._next_look = now + _EVERY
        return self._channel.looking.take(self._look, links, now) or ""

    def _look(self, links: Links | None, now: float) -> str:
        if not self._channel.open:
            return ""
        self._hear()
        if self._own is None and (self._heard or self._finds_another_call(links)):
            self._give()
        others = len(self._channel.ranks) - 1
        if self._own is None or (len(self._heard) < others and now - self._given < _PATIENCE):
            return ""
        return self._conclude()

    def _finds_another_call(self, links: Links | None) -> bool:
        inside = links.tags() if links is not None else ()
        return any(map(self._channel.is_of_another_call, chain(inside, self._channel.unmatched())))

    def _hear(self) -> None:
        """Receive the accounts that have come."""
        channel = self._channel
        status = MPI.Status()
        tag = channel.tag(WATCH, ACCOUNT)
        while channel.probe(tag, status):
            channel.is_talking = True
            words = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            request = owning(channel.wire.comm.Irecv([words, MPI.BYTE], status.source, tag), words)
            self._receiving.append((list(channel.ranks).index(status.source), words, request))
            channel.is_talking = False
        waiting = []
        for rank, words, request in self._receiving:
            if not request.Test():
                waiting.append((rank, words, request))
                continue
            attempt, account = Account.unpacked(words)
            if attempt >= self._attempt:
                self._attempt = attempt
                self._heard[rank] = account
        self._receiving = waiting

    def _give(self) -> None:
        """Send this rank's account to all other ranks."""
        channel = self._channel
        channel.is_talking = True
        self._own = self._account()
        words = self._own.packed(self._attempt)
        tag = channel.tag(WATCH, ACCOUNT)
        for rank, number in enumerate(channel.ranks):
            if rank != channel.rank:
                owning(channel.wire.comm.Isend([words, MPI.BYTE], number, tag), words)
        self._given = perf_counter()
        channel.is_talking = False

    def _account(self) -> Account:
        recorder = self._recorder
        doing = "; ".join(f"{record.text} at {_site(record)}" for record in recorder.under_way)
        calls = dict(sorted(calls_so_far(recorder).items())[-_MOST_CALLS:])
        return Account(calls, self._channel.begun_tags(), doing or "no call")

    def _conclude(self) -> str:
        assert self._own is not None
        accounts = {**self._heard, self._channel.rank: self._own}
        self._heard = {}
        self._own = None
        self._attempt += 1
        text = difference(accounts, len(self._channel.ranks))
        if not text:
            self._next_look = perf_counter() + _SELDOM
        return text


def calls_so_far(recorder: Recorder) -> dict[int, tuple[str, str]]:
    """{place: (what, where)} of the last calls of a communicator, with those under way."""
    calls = remembered(recorder)
    for record in recorder.under_way:
        if record.place:
            calls[record.place] = record.text, f" at {_site(record)}"
    return _followed(calls)


def _site(record: Record) -> str:
    if record.site:
        return site_text(record.site)
    if record.thread == get_ident():
        return call_site()
    frame = frames_of_threads().get(record.thread)
    return site_of(frame) if frame is not None else "a place that is not known"


def _followed(calls: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """The same calls; those without a line have the next one that has."""
    completed: dict[int, tuple[str, str]] = {}
    after = ""
    for place, (what, where) in sorted(calls.items(), reverse=True):
        completed[place] = what, where
        if where.startswith(" at "):
            after = f"{what}{where}"
        elif after:
            completed[place] = what, f"{where}, before {after}"
    return completed


# Comparing accounts.


def difference(accounts: Mapping[int, Account], size: int) -> str:
    """The first call that ranks do not have in common, and their calls under way; "" if none.

    accounts: by rank. size: of the communicator.
    """
    ordered = dict(sorted(accounts.items()))
    silent = [rank for rank in range(size) if rank not in ordered]
    first = _first_apart(ordered)
    if not first and not silent and not _tags_differ(ordered.values()):
        return ""
    lines = ["ranks do not make the same calls, which a message of another call shows."]
    if first:
        lines += ["The first call that they do not have in common:", *first]
    elif not silent:
        lines.append("They went apart before the calls that all of them remember.")
    lines.append("They are now in:")
    lines += _by_ranks({rank: account.doing for rank, account in ordered.items()})
    if silent:
        lines.append(f"  {ranks_text(silent)}: not known, no answer came")
    return "\n".join(lines)


def _first_apart(accounts: Mapping[int, Account]) -> list[str]:
    """A line for each group of ranks that make the same call, at the first place that differs."""
    windows = [_window(account.calls) for account in accounts.values()]
    for place in range(max(first for first, _ in windows), min(last for _, last in windows) + 1):
        if len({account.calls[place][0] for account in accounts.values()}) > 1:
            return _by_ranks(
                {rank: "".join(account.calls[place]) for rank, account in accounts.items()})
    return []


def _window(calls: Mapping[int, object]) -> tuple[int, int]:
    """The places of the last calls in a row; what came before is forgotten in part."""
    first = last = max(calls, default=0)
    while first - 1 in calls:
        first -= 1
    return first or 1, last


def _tags_differ(accounts: Iterable[Account]) -> bool:
    first: dict[int, int] = {}
    tags = chain.from_iterable(account.tags.items() for account in accounts)
    return any(first.setdefault(number, tag) != tag for number, tag in tags)


def _by_ranks(said: Mapping[int, str]) -> list[str]:
    ranks = list(said)
    alike = groups(list(said.values()))
    return [f"  {ranks_text([ranks[at] for at in places])}: {text}" for text, places in alike]
