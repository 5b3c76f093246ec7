"""Ranks ask each other what they are doing, past the calls in which they are stuck, where MPI admits threads.

A question is an empty message, an answer a state as JSON, on the channel of the communicator, with tags of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np
from mpi4py import MPI

from ..execute import WATCH, Context
from ..reports import State

_QUESTION, _ANSWER = 1, 2
#: ranks that one rank asks at most: with all of them, a job in which all wait would have p^2 answers
MOST_ASKED = 256
#: seconds between two looks for messages
_PAUSE = 0.01
#: messages sent to ranks that may be dead: their memory is never given back
_SENT: list[object] = []


def answer_questions(context: Context, state: Callable[[], State]) -> None:
    """Answer all who have asked on this communicator."""
    channel, status = context.channel, MPI.Status()
    with channel.lock:  # what one thread has seen must not be taken by another
        while channel.probe(channel.tag(WATCH, _QUESTION), status):
            channel.wire.comm.Recv([None, 0, MPI.BYTE], status.source, status.tag)
            text = np.frombuffer(packed(state()), np.uint8)
            _SENT.append((text, channel.wire.comm.Isend([text, MPI.BYTE], status.source, channel.tag(WATCH, _ANSWER))))


def ask_others(
    context: Context, mine: State, seconds: float, meanwhile: Callable[[], object]
) -> tuple[list[State], list[int], list[int]]:
    """The states of other ranks; which ranks in the world were asked, and which of them gave none within so many seconds.

    All are asked where there are `MOST_ASKED` or fewer. Of more ranks, those for which this one waits, those for which these
    wait, and so on, and some from everywhere. mine: the state of this rank. meanwhile: called again and again, to answer
    those who ask at the same time.
    """
    channel, status = context.channel, MPI.Status()
    places = {channel.wire.world_ranks[number]: number for number in channel.ranks}
    asked: set[int] = set()
    waiting: set[int] = set()

    def ask(ranks: Iterable[int]) -> None:
        """ranks: numbers on the wire."""
        for number in ranks:
            if number not in asked and number != channel.ranks[channel.rank] and len(asked) < MOST_ASKED:
                asked.add(number)
                waiting.add(number)
                _SENT.append(channel.wire.comm.Isend([None, 0, MPI.BYTE], number, channel.tag(WATCH, _QUESTION)))

    ask(places[rank] for rank in _awaited(mine) if rank in places)
    ask(_from_everywhere(channel.ranks))
    states, until = [], time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        meanwhile()
        text = _answer(context, status)
        if text is None:
            time.sleep(_PAUSE)
        elif status.source in waiting:  # an answer to an earlier question may still come
            waiting.discard(status.source)
            states.append(unpacked(text))
            ask(places[rank] for rank in _awaited(states[-1]) if rank in places)
    world = channel.wire.world_ranks
    return states, sorted(world[number] for number in asked), sorted(world[number] for number in waiting)


def _from_everywhere(ranks: Sequence[int]) -> Sequence[int]:
    """All of these, or as many as leave half of the questions to those that are awaited."""
    if len(ranks) <= MOST_ASKED:
        return ranks
    return [ranks[crc32(b"%d" % number) * len(ranks) >> 32] for number in range(MOST_ASKED // 2)]


def _awaited(state: State) -> Iterator[int]:
    """The ranks in the world whose messages a rank waits for."""
    for communicator in state["communicators"]:
        for call in communicator["under_way"]:
            if call["peer"] is not None:
                yield call["peer"]


def _answer(context: Context, status: MPI.Status) -> bytes | None:
    """An answer that has come, if one has. status: gets its source."""
    channel = context.channel
    with channel.lock:
        if not channel.probe(channel.tag(WATCH, _ANSWER), status):
            return None
        text = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        channel.wire.comm.Recv([text, MPI.BYTE], status.source, status.tag)
    return text.tobytes()


# What an answer does not say of each rank of a communicator.


def packed(state: State) -> bytes:
    """A state as JSON, in which the ranks of communicators are runs."""
    communicators = [one | {"ranks": runs_of(one["ranks"])} for one in state["communicators"]]
    return json.dumps(state | {"communicators": communicators}).encode()


def unpacked(text: bytes) -> State:
    """The state again. Communicators of the same ranks have one list in common."""
    state: State = json.loads(text)
    for communicator in state["communicators"]:
        communicator["ranks"] = _ranks_of(tuple(map(tuple, communicator["ranks"])))
    return state


def runs_of(ranks: Iterable[int]) -> list[tuple[int, int, int]]:
    """(first, distance, count) of ranks at equal distances.

    >>> runs_of([0, 1, 2, 3, 8, 6])
    [(0, 1, 4), (8, -2, 2)]
    """
    runs: list[tuple[int, int, int]] = []
    for rank in ranks:
        first, distance, count = runs[-1] if runs else (0, 0, 0)
        if count == 1:
            runs[-1] = first, rank - first, 2
        elif count and rank == first + count * distance:
            runs[-1] = first, distance, count + 1
        else:
            runs.append((rank, 0, 1))
    return runs


@lru_cache(maxsize=MOST_ASKED)
def _ranks_of(runs: tuple[tuple[int, int, int], ...]) -> list[int]:
    return [first + place * distance for first, distance, count in runs for place in range(count)]
