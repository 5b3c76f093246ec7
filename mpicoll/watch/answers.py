"""Ranks ask each other what they are doing, past the calls in which they are stuck, where MPI admits threads.

A question is an empty message, an answer a state as JSON, on the channel of the communicator, with tags of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ..execute import WATCH, Context
from ..reports import State

_QUESTION, _ANSWER = 1, 2
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
            text = np.frombuffer(json.dumps(state()).encode(), np.uint8)
            _SENT.append((text, channel.wire.comm.Isend([text, MPI.BYTE], status.source, channel.tag(WATCH, _ANSWER))))


def ask_others(context: Context, seconds: float, meanwhile: Callable[[], object]) -> tuple[list[State], list[int]]:
    """The states of the other ranks, and which ranks in the world gave none within so many seconds.

    meanwhile: called again and again, to answer those who ask at the same time.
    """
    channel, status = context.channel, MPI.Status()
    waiting = {rank for rank in channel.ranks if rank != channel.ranks[channel.rank]}
    for rank in waiting:
        _SENT.append(channel.wire.comm.Isend([None, 0, MPI.BYTE], rank, channel.tag(WATCH, _QUESTION)))
    states, until = [], time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        meanwhile()
        text = _answer(context, status)
        if text is None:
            time.sleep(_PAUSE)
        elif status.source in waiting:  # an answer to an earlier question may still come
            waiting.discard(status.source)
            states.append(json.loads(text))
    return states, sorted(channel.wire.world_ranks[rank] for rank in waiting)


def _answer(context: Context, status: MPI.Status) -> bytes | None:
    """An answer that has come, if one has. status: gets its source."""
    channel = context.channel
    with channel.lock:
        if not channel.probe(channel.tag(WATCH, _ANSWER), status):
            return None
        text = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        channel.wire.comm.Recv([text, MPI.BYTE], status.source, status.tag)
    return text.tobytes()
