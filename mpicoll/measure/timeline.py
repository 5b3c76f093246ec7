"""Timelines: one file of what all ranks did when, which Perfetto and Chrome open."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy

from ..errors import ArgumentError
from ..support.checks import check, raise_everywhere
from ..support.events import Event
from ..support.files import write_whole

if TYPE_CHECKING:
    from mpi4py import MPI

#: an entry of Chrome's format, or a document of them
Json: TypeAlias = dict[str, Any]
#: kinds of events in the order of the tracks of a rank: of training, and of calls
OF_TRAINING = ("step", "compute", "wait", "communication")
OF_CALLS = ("call", "wait", "compute", "send", "receive")
#: of these, those that are not the doings of one thread, and may overlap
_IN_FLIGHT = ("communication", "send", "receive")
_ROUND_TRIPS = 10


def write_timeline(
    path: str | os.PathLike[str],
    events: Sequence[Event],
    comm: MPI.Intracomm,
    kinds: Sequence[str] = OF_TRAINING,
) -> None:
    """Write the events of all ranks to `path`, on rank 0, in Chrome's trace event format (JSON).

    A process per rank, a thread per kind of events, in this order, and several where what is in
    flight overlaps. Times are microseconds from the first event, those of other ranks moved to rank
    0's clock, right to about half of the fastest round trip at this moment. Collective. Raises
    ArgumentError on all ranks where nothing was traced or rank 0 cannot write. Rank 0 holds all
    events at once.
    """
    check("path", path, isinstance(path, (str, os.PathLike)), "the path of a file")
    # a plain communicator: nothing of the user's can meet the messages of the clocks
    private = comm.Split()
    shift = clock_shift(private)
    shifted = [event._replace(begin=event.begin + shift, end=event.end + shift) for event in events]
    everyone = private.gather((platform.node(), shifted))
    private.Free()
    raise_everywhere(comm, _write(path, everyone, kinds) if everyone else None)


def clock_shift(comm: MPI.Comm) -> float:
    """Seconds to add to this rank's perf_counter to get rank 0's. Collective."""
    own_time = numpy.zeros(1)
    peer_time = numpy.zeros(1)
    if comm.Get_rank():
        for _ in range(_ROUND_TRIPS):
            comm.Recv(own_time, 0)
            comm.Send(numpy.array([perf_counter()]), 0)
        comm.Recv(own_time, 0)
        return float(own_time[0])
    for rank in range(1, comm.Get_size()):
        trips = []
        for _ in range(_ROUND_TRIPS):
            begin = perf_counter()
            comm.Send(own_time, rank)
            comm.Recv(peer_time, rank)
            end = perf_counter()
            trips.append((end - begin, (begin + end) / 2 - peer_time[0]))
        # in the fastest, the answer was written closest to the middle
        comm.Send(numpy.array([min(trips)[1]]), rank)
    return 0.0


def _write(
    path: str | os.PathLike[str],
    everyone: Sequence[tuple[str, Sequence[Event]]],
    kinds: Sequence[str],
) -> ArgumentError | None:
    """Write the trace; return the error, or None."""
    if not any(events for _, events in everyone):
        return ArgumentError(
            f"trace {os.fspath(path)}: expected events, got none; set meter.tracing before the"
            " training"
        )
    try:
        write_whole(path, json.dumps(document(everyone, kinds), separators=(",", ":")))
    except ArgumentError as error:
        return ArgumentError(f"trace: {error}; name another file")
    return None


def document(
    everyone: Sequence[tuple[str, Sequence[Event]]], kinds: Sequence[str] = OF_TRAINING
) -> Json:
    """The trace as a dict. everyone: (host, events) of each rank, times in seconds of one clock."""
    first = min(event.begin for _, events in everyone for event in events)
    entries: list[Json] = []
    for rank, (host, events) in enumerate(everyone):
        entries += [
            _metadata("process_name", rank, 0, name=f"rank {rank} on {host}"),
            _metadata("process_sort_index", rank, 0, sort_index=rank),
        ]
        entries += _threads(rank, events, first, kinds)
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def _threads(rank: int, events: Sequence[Event], first: float, kinds: Sequence[str]) -> list[Json]:
    """Entries of one rank, with a thread per track."""
    entries: list[Json] = []
    thread = 1  # viewers take thread 0 for the idle one
    for kind in kinds:
        of_kind = sorted(
            (event for event in events if event.kind == kind),
            key=lambda event: (event.begin, -event.end),
        )
        for number, track in enumerate(tracks(of_kind) if kind in _IN_FLIGHT else [of_kind], 1):
            name = kind if number == 1 else f"{kind} {number}"
            entries += [
                _metadata("thread_name", rank, thread, name=name),
                _metadata("thread_sort_index", rank, thread, sort_index=thread),
            ]
            entries += [_complete(rank, thread, event, first) for event in track]
            thread += 1
    return entries


def tracks(events: Iterable[Event]) -> list[list[Event]]:
    """Distribute events, in order of their begin, to the fewest tracks without overlap.

    Threads of these draw alike in every viewer, which the format's asynchronous events do not.
    """
    dealt: list[list[Event]] = [[]]
    for event in events:
        track = next((track for track in dealt if not track or track[-1].end <= event.begin), None)
        if track is None:
            dealt.append(track := [])
        track.append(event)
    return dealt


def _metadata(kind: str, rank: int, thread: int, **values: object) -> Json:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": values}


def _complete(rank: int, thread: int, event: Event, first: float) -> Json:
    """A complete event; whole nanoseconds, so that rounding lets no two overlap that only touch."""
    begin, end = (round((time - first) * 1e9) for time in (event.begin, event.end))
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.kind,
        "pid": rank,
        "tid": thread,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        **({"args": event.facts} if event.facts else {}),
    }
