"""Timelines of training: one file of all ranks that Perfetto and Chrome open, and a picture of one step of it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy

from ...errors import ArgumentError
from ...support.checks import check, raise_everywhere
from ...support.files import save_figure, write_whole
from ...support.optional import require
from .meter import Event, Meter

if TYPE_CHECKING:
    from mpi4py import MPI

#: an entry of Chrome's format, or a document of them
Json: TypeAlias = dict[str, Any]
#: kinds of events in the order of the tracks of a rank
KINDS = ("step", "compute", "wait", "communication")
_ROUND_TRIPS = 10
#: of the picture: the row of the two of a rank, colour and meaning
_STYLES = {
    "compute": (0, "tab:blue", "computing"),
    "wait": (0, "tab:red", "waiting for communication"),
    "communication": (1, "tab:orange", "communication in flight"),
}


class Bar(NamedTuple):
    """A rank's event of a kind in the picture of a step; milliseconds from the step's begin."""

    rank: int
    kind: str
    begin: float
    end: float


def write(path: str | os.PathLike[str], meter: Meter, comm: MPI.Intracomm) -> None:
    """Write the events of all ranks' meters to `path`, on rank 0, in Chrome's trace event format (JSON).

    A process per rank, a thread per track; events that overlap are on several tracks. Times are microseconds from the first
    event, those of other ranks moved to rank 0's clock, right to about half of the fastest round trip at this moment.
    Collective: `meter.tracing` was set on some rank. Raises ArgumentError on all ranks where nothing was traced or rank 0
    cannot write. Rank 0 holds all events at once.
    """
    check("path", path, isinstance(path, (str, os.PathLike)), "the path of a file")
    own = comm.Split()  # a plain communicator: nothing of the user's can meet the messages of the clocks
    shift = clock_shift(own)
    events = [Event(kind, name, begin + shift, end + shift) for kind, name, begin, end in meter.events]
    everyone = own.gather((platform.node(), events))
    own.Free()
    raise_everywhere(comm, _write(path, everyone) if everyone else None)


def clock_shift(comm: MPI.Comm) -> float:
    """Seconds to add to this rank's perf_counter to get that of rank 0, 0.0 there. Collective; rank 0 asks one by one."""
    ours, theirs = numpy.zeros(1), numpy.zeros(1)
    if comm.Get_rank():
        for _ in range(_ROUND_TRIPS):
            comm.Recv(ours, 0)
            comm.Send(numpy.array([perf_counter()]), 0)
        comm.Recv(ours, 0)
        return float(ours[0])
    for rank in range(1, comm.Get_size()):
        trips = []
        for _ in range(_ROUND_TRIPS):
            begin = perf_counter()
            comm.Send(ours, rank)
            comm.Recv(theirs, rank)
            end = perf_counter()
            trips.append((end - begin, (begin + end) / 2 - theirs[0]))
        comm.Send(numpy.array([min(trips)[1]]), rank)  # in the fastest, the answer was written closest to the middle
    return 0.0


def _write(path: str | os.PathLike[str], everyone: Sequence[tuple[str, Sequence[Event]]]) -> ArgumentError | None:
    """Write the trace; return what is wrong, or None."""
    if not any(events for _, events in everyone):
        return ArgumentError(f"trace {os.fspath(path)}: expected events, got none; set meter.tracing before the training")
    try:
        write_whole(path, json.dumps(document(everyone), separators=(",", ":")))
    except ArgumentError as error:
        return ArgumentError(f"trace: {error}; name another file")
    return None


def document(everyone: Sequence[tuple[str, Sequence[Event]]]) -> Json:
    """The trace as a dict. everyone: (host, events) of each rank, times in seconds of one clock."""
    first = min(begin for _, events in everyone for _, _, begin, _ in events)
    entries: list[Json] = []
    for rank, (host, events) in enumerate(everyone):
        entries += [_metadata("process_name", rank, 0, name=f"rank {rank} on {host}"),
                    _metadata("process_sort_index", rank, 0, sort_index=rank)]  # fmt: skip
        entries += _threads(rank, events, first)
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def _threads(rank: int, events: Sequence[Event], first: float) -> list[Json]:
    """Entries of one rank, with a thread per track."""
    entries: list[Json] = []
    thread = 1  # viewers take thread 0 for the idle one
    for kind in KINDS:
        mine = sorted((event for event in events if event[0] == kind), key=lambda event: (event[2], -event[3]))
        for number, track in enumerate(tracks(mine) if kind == "communication" else [mine], 1):
            name = kind if number == 1 else f"{kind} {number}"
            entries += [_metadata("thread_name", rank, thread, name=name),
                        _metadata("thread_sort_index", rank, thread, sort_index=thread)]  # fmt: skip
            entries += [_complete(rank, thread, event, first) for event in track]
            thread += 1
    return entries


def tracks(events: Iterable[Event]) -> list[list[Event]]:
    """Deal events, in order of their begin, out to as few tracks as keep those of each track apart; at least one.

    Threads of these draw alike in every viewer, which the format's asynchronous events do not.
    """
    dealt: list[list[Event]] = [[]]
    for event in events:
        track = next((track for track in dealt if not track or track[-1][3] <= event[2]), None)
        if track is None:
            dealt.append(track := [])
        track.append(event)
    return dealt


def _metadata(kind: str, rank: int, thread: int, **values: object) -> Json:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": values}


def _complete(rank: int, thread: int, event: Event, first: float) -> Json:
    """A complete event; whole nanoseconds, so that rounding lets no two overlap that only touch."""
    kind, name, *times = event
    begin, end = (round((time - first) * 1e9) for time in times)
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": thread,
            "ts": begin / 1000, "dur": (end - begin) / 1000}  # fmt: skip


def picture(output: str | os.PathLike[str], traces: Iterable[tuple[str, str | os.PathLike[str]]], step: int) -> None:
    """Draw one step of several traces below each other, on one scale of time.

    output: a file whose name ends in .svg, .png or another that matplotlib writes. traces: (title, path) of each.
    step: its number in the traces, from 0. Each rank has a row for its main thread (computing, or waiting for
    communication) and one for what was in flight. Raises ArgumentError if a trace does not have that step, LaunchError
    without matplotlib.
    """
    figure_of = require("matplotlib.figure", "a picture").Figure
    opened = [(title, *_step_of(path, step)) for title, path in traces]
    heights = [1 + ranks for _, ranks, _ in opened]
    figure = figure_of(figsize=(9, 0.4 + 0.55 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(opened), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, ranks, bars) in zip(panels, opened):
        _draw(axes, ranks, bars)
        axes.set_title(title, fontsize="medium", loc="left")
    panels[-1].set_xlabel("milliseconds from the begin of the step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize="small")
    # an SVG of the same trace is the same file
    save_figure(figure, output, metadata={"Date": None} if str(output).endswith(".svg") else None)


def _draw(axes: Any, ranks: int, bars: Sequence[Bar]) -> None:
    """Two rows per rank, and the end of each rank's step."""
    for kind, (row, colour, label) in _STYLES.items():
        for rank in range(ranks):
            spans = [(bar.begin, bar.end - bar.begin) for bar in bars if (bar.rank, bar.kind) == (rank, kind)]
            axes.broken_barh(spans, (2 * rank + row - 0.4, 0.8), facecolor=colour, edgecolor="white",
                             linewidth=0.4, label=None if rank else label)  # fmt: skip
    for bar in bars:
        if bar.kind == "step":
            axes.vlines(bar.end, 2 * bar.rank - 0.5, 2 * bar.rank + 1.5, color="black", linewidth=1)
    names = [name for rank in range(ranks) for name in (f"rank {rank}", "in flight")]
    axes.set_yticks(range(2 * ranks), names, fontsize="small")
    axes.invert_yaxis()


def _step_of(path: str | os.PathLike[str], number: int) -> tuple[int, list[Bar]]:
    """Ranks of a trace, and its bars within a step."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    whole = {event["pid"]: event for event in events if event["cat"] == "step" and event["name"] == f"step {number}"}
    check("step", number, whole, f"the number of a step in {path}")
    return 1 + max(whole), list(_bars(events, whole))


def _bars(events: Iterable[Json], whole: dict[int, Json]) -> Iterator[Bar]:
    """Those of one step, cut at its ends. whole: the event of the step, by rank."""
    zero = min(event["ts"] for event in whole.values())
    for event in events:
        if event["pid"] not in whole or event["cat"] == "step" and event is not whole[event["pid"]]:
            continue
        limits = whole[event["pid"]]
        begin = max(event["ts"], limits["ts"])
        end = min(event["ts"] + event["dur"], limits["ts"] + limits["dur"])
        if end > begin:
            yield Bar(event["pid"], event["cat"], (begin - zero) / 1000, (end - zero) / 1000)
