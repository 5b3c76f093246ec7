"""Timelines of training: one file of all ranks that Perfetto and Chrome open, and a picture of one step of it."""

import json
import os
import platform
from time import perf_counter

import numpy

from ...errors import ArgumentError, LaunchError
from ...support.checks import check

#: the order of the rows of a rank
TRACKS = ("step", "compute", "wait", "communication")
_ROUND_TRIPS = 10
#: of the picture: the row of the two of a rank, colour and meaning
_STYLES = {
    "compute": (0, "tab:blue", "computing"),
    "wait": (0, "tab:red", "waiting for communication"),
    "communication": (1, "tab:orange", "communication in flight"),
}


def write(path, meter, comm):
    """Write the events of all ranks' meters to `path`, on rank 0, in Chrome's trace event format (JSON).

    A process per rank, a thread per track; flights that overlap are on several. Times are microseconds from the first
    event, those of other ranks moved to rank 0's clock, right to about half of the fastest round trip at this moment.
    Collective: `meter.tracing` was set on some rank. Raises ArgumentError on all ranks where nothing was traced or rank 0
    cannot write. Rank 0 holds all events at once.
    """
    check("path", path, isinstance(path, (str, os.PathLike)), "the path of a file")
    own = comm.Split()  # a plain communicator: nothing of the user's can meet the messages of the clocks
    shift = clock_shift(own)
    events = [(track, name, begin + shift, end + shift) for track, name, begin, end in meter.events]
    everyone = own.gather((platform.node(), events))
    problem = own.bcast(_write(path, everyone) if everyone else None)
    own.Free()
    if problem:
        raise ArgumentError(problem)


def clock_shift(comm):
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


def _write(path, everyone):
    """Write the trace; return what is wrong, or None."""
    if not any(events for _, events in everyone):
        return f"trace {os.fspath(path)}: expected events, got none; set meter.tracing before the training"
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document(everyone), file, separators=(",", ":"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return f"trace: expected a file that can be written, got {os.fspath(path)!r} ({reason}); name another"
    return None


def document(everyone):
    """The trace as a dict. everyone: (host, events) of each rank, times in seconds of one clock."""
    first = min(begin for _, events in everyone for _, _, begin, _ in events)
    entries = []
    for rank, (host, events) in enumerate(everyone):
        entries += [_metadata("process_name", rank, 0, name=f"rank {rank} on {host}"),
                    _metadata("process_sort_index", rank, 0, sort_index=rank)]  # fmt: skip
        entries += _threads(rank, events, first)
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def _threads(rank, events, first):
    """Entries of one rank, with a thread per track."""
    entries, thread = [], 1  # viewers take thread 0 for the idle one
    for track in TRACKS:
        mine = sorted((event for event in events if event[0] == track), key=lambda event: (event[2], -event[3]))
        for number, lane in enumerate(lanes(mine) if track == "communication" else [mine], 1):
            name = track if number == 1 else f"{track} {number}"
            entries += [_metadata("thread_name", rank, thread, name=name),
                        _metadata("thread_sort_index", rank, thread, sort_index=thread)]  # fmt: skip
            entries += [_complete(rank, thread, event, first) for event in lane]
            thread += 1
    return entries


def lanes(events):
    """Deal events, in order of their begin, out to as few lists as keep those of each list apart; at least one list.

    Threads of these draw alike in every viewer, which the format's asynchronous events do not.
    """
    rows = [[]]
    for event in events:
        free = (row for row in rows if not row or row[-1][3] <= event[2])
        row = next(free, None)
        if row is None:
            rows.append(row := [])
        row.append(event)
    return rows


def _metadata(kind, rank, thread, **values):
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": values}


def _complete(rank, thread, event, first):
    """A complete event; whole nanoseconds, so that rounding lets no two overlap that only touch."""
    track, name, *times = event
    begin, end = (round((time - first) * 1e9) for time in times)
    return {"ph": "X", "name": name, "cat": track, "pid": rank, "tid": thread,
            "ts": begin / 1000, "dur": (end - begin) / 1000}  # fmt: skip


def picture(output, traces, step):
    """Draw one step of several traces below each other, on one scale of time.

    output: a file whose name ends in .svg, .png or another that matplotlib writes. traces: (title, path) of each.
    step: its number in the traces, from 0. Each rank has a row for its main thread (computing, or waiting for
    communication) and one for what was in flight. Raises ArgumentError if a trace does not have that step, LaunchError
    without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LaunchError('a picture needs matplotlib; install it with: pip install "mpicoll[plot]"') from error
    opened = [(title, *_step_of(path, step)) for title, path in traces]
    heights = [1 + ranks for _, ranks, _ in opened]
    figure = Figure(figsize=(9, 0.4 + 0.55 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(opened), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, ranks, bars) in zip(panels, opened):
        _draw(axes, ranks, bars)
        axes.set_title(title, fontsize="medium", loc="left")
    panels[-1].set_xlabel("milliseconds from the begin of the step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize="small")
    figure.savefig(output)


def _draw(axes, ranks, bars):
    """Two rows per rank, and the end of each rank's step."""
    for track, (row, colour, label) in _STYLES.items():
        for rank in range(ranks):
            spans = [(begin, end - begin) for owner, kind, begin, end in bars if (owner, kind) == (rank, track)]
            axes.broken_barh(spans, (2 * rank + row - 0.4, 0.8), facecolor=colour, edgecolor="white",
                             linewidth=0.4, label=None if rank else label)  # fmt: skip
    for rank, kind, _, end in bars:
        if kind == "step":
            axes.vlines(end, 2 * rank - 0.5, 2 * rank + 1.5, color="black", linewidth=1)
    names = [name for rank in range(ranks) for name in (f"rank {rank}", "in flight")]
    axes.set_yticks(range(2 * ranks), names, fontsize="small")
    axes.invert_yaxis()


def _step_of(path, number):
    """Ranks of a trace, and its bars (rank, track, begin, end) within a step; milliseconds from the step's begin."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    whole = {event["pid"]: event for event in events if event["cat"] == "step" and event["name"] == f"step {number}"}
    check("step", number, whole, f"the number of a step in {path}")
    zero, bars = min(event["ts"] for event in whole.values()), []
    for event in events:
        if event["pid"] not in whole or event["cat"] == "step" and event is not whole[event["pid"]]:
            continue
        limits = whole[event["pid"]]
        begin = max(event["ts"], limits["ts"])
        end = min(event["ts"] + event["dur"], limits["ts"] + limits["dur"])
        if end > begin:
            bars.append((event["pid"], event["cat"], (begin - zero) / 1000, (end - zero) / 1000))
    return 1 + max(whole), bars
