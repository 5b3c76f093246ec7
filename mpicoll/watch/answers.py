"""Questions between ranks about their state, in the background of calls in which they are stuck.

They need an MPI with threads. A question is an empty message, an answer a state as JSON, on the
channel of the communicator, each with a tag of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np
from mpi4py import MPI

from ..execute import Context
from ..failure import owning
from ..reports import State
from ..transport import WATCH, Channel

_QUESTION = 1
_ANSWER = 2
#: the most ranks that a rank asks: if each asked all, a job of p ranks would have p^2 answers
MOST_ASKED = 256
#: seconds between two looks for messages
_PAUSE = 0.01


def answer_questions(context: Context, state: Callable[[], State]) -> None:
    """Answer all questions on this communicator, unless another thread is doing so."""
    context.channel.looking.take(_answer_all, context.channel, state)


def _answer_all(channel: Channel, state: Callable[[], State]) -> None:
    comm = channel.wire.comm
    status = MPI.Status()
    while channel.probe(channel.tag(WATCH, _QUESTION), status):
        comm.Recv([None, 0, MPI.BYTE], status.source, status.tag)
        text = np.frombuffer(packed(state()), np.uint8)
        tag = channel.tag(WATCH, _ANSWER)
        owning(comm.Isend([text, MPI.BYTE], status.source, tag), text)


def ask_others(
    context: Context, own: State, seconds: float, meanwhile: Callable[[], object]
) -> tuple[list[State], list[int], list[int]]:
    """(states of other ranks, asked ranks, silent ranks), the ranks in the world.

    A rank is silent that does not answer within so many seconds. Up to `MOST_ASKED` ranks are all
    asked. Of more ranks, this rank asks those for which it waits, those for which these wait, and
    so on, and a sample of the others. own: the state of this rank. meanwhile: called repeatedly, to
    answer questions that come at the same time.
    """
    channel = context.channel
    comm = channel.wire.comm
    world = channel.wire.world_ranks
    status = MPI.Status()
    #: numbers on the wire by ranks in the world
    numbers = {world[number]: number for number in channel.ranks}
    own_number = channel.ranks[channel.rank]
    asked: set[int] = set()
    waiting: set[int] = set()

    def ask(ranks: Iterable[int]) -> None:
        """ranks: numbers on the wire."""
        for number in ranks:
            if number in asked or number == own_number or len(asked) >= MOST_ASKED:
                continue
            asked.add(number)
            waiting.add(number)
            tag = channel.tag(WATCH, _QUESTION)
            owning(comm.Isend([None, 0, MPI.BYTE], number, tag), None)

    def ask_awaited(state: State) -> None:
        ask(numbers[rank] for rank in _awaited(state) if rank in numbers)

    ask_awaited(own)
    ask(_sample(channel.ranks))
    states = []
    until = time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        meanwhile()
        text = channel.looking.take(_answer, channel, status)
        if text is None:
            time.sleep(_PAUSE)
        elif status.source in waiting:  # an answer to an earlier question may still come
            waiting.discard(status.source)
            state = unpacked(text)
            states.append(state)
            ask_awaited(state)
    silent = sorted(world[number] for number in waiting)
    return states, sorted(world[number] for number in asked), silent


def _sample(ranks: Sequence[int]) -> Sequence[int]:
    """All of these ranks, or as many as leave half of the questions to those that are awaited."""
    if len(ranks) <= MOST_ASKED:
        return ranks
    return [ranks[crc32(b"%d" % number) * len(ranks) >> 32] for number in range(MOST_ASKED // 2)]


def _awaited(state: State) -> Iterator[int]:
    """The ranks in the world whose messages a rank waits for."""
    for communicator in state["communicators"]:
        for call in communicator["under_way"]:
            if call["peer"] is not None:
                yield call["peer"]


def _answer(channel: Channel, status: MPI.Status) -> bytes | None:
    """An answer, if any has arrived. status: gets its source."""
    if not channel.probe(channel.tag(WATCH, _ANSWER), status):
        return None
    text = np.empty(status.Get_count(MPI.BYTE), np.uint8)
    channel.wire.comm.Recv([text, MPI.BYTE], status.source, status.tag)
    return text.tobytes()


# Answers name the ranks of a communicator by runs.


def packed(state: State) -> bytes:
    """A state as JSON, in which the ranks of communicators are runs."""
    communicators = [
        communicator | {"ranks": runs_of(communicator["ranks"])}
        for communicator in state["communicators"]
    ]
    return json.dumps(state | {"communicators": communicators}).encode()


def unpacked(text: bytes) -> State:
    """The state of a JSON text. Communicators of the same ranks share a list."""
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
