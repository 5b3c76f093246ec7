"""The state of this process as plain data: see `mpicoll.reports`.

Nothing here calls MPI, in which the job may be stuck.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from ..execute import Context
from ..failure import Past, Record, past, past_with_passed
from ..reports import SCHEMA, History, State
from ..support.callsite import site_of, site_text, users_code, users_line
from ..support.garbage import frames_of_threads

#: ended calls of a communicator that are part of its state
_SHOWN = 3


def state_of_process(rank: int, size: int, **more: Any) -> State:
    """The state of this process now. rank, size: in the world; more: further entries."""
    frames = frames_of_threads()
    others = dict(frames)
    main = others.pop(threading.main_thread().ident or 0, None)
    return {
        "schema": SCHEMA,
        "rank": rank,
        "size": size,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "time": time.time(),
        "at": site_of(main) if main is not None else "",
        "threads": sorted(set(map(users_line, others.values())) - {""}),
        **more,
        "communicators": _communicators(frames),
    }


def stacks_of_threads() -> str:
    """The stack of each other thread, that of the main thread last."""
    frames = frames_of_threads()
    frames.pop(threading.get_ident())
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    lines = []
    for thread in sorted(frames, key=lambda thread: thread == main):
        lines.append(f"Thread {names.get(thread, thread)} (most recent call first):")
        # no source lines: what hangs may be the file system
        for frame, line in traceback.walk_stack(frames[thread]):
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {line} in {code.co_name}')
    return "\n".join(lines)


def history_of_process() -> History:
    """The last calls of this process, of all communicators; rows refer to words by number."""
    words: dict[str, int] = {}

    def word(text: str) -> int:
        return words.setdefault(text, len(words))

    clock = time.time() - time.perf_counter()
    rows = [
        [
            word(call.communicator),
            call.place,
            call.number,
            word(call.text),
            word(call.served),
            word(call.line),
            round(clock + call.begun, 6),
            round(call.ended - call.begun, 6),
        ]
        for call in past_with_passed([context.recorder for context in Context.living()])
    ]
    return {"words": list(words), "rows": rows}


def _communicators(frames: dict[int, Any]) -> list[dict[str, Any]]:
    """The communicators that were not freed."""
    ended: dict[str, list[Past]] = {}
    for call in past():
        ended.setdefault(call.communicator, []).append(call)
    return [
        _communicator(context, frames, ended.get(context.recorder.name, [])[-_SHOWN:])
        for context in Context.living()
    ]


def _communicator(
    context: Context, frames: dict[int, Any], ended: Sequence[Past]
) -> dict[str, Any]:
    recorder = context.recorder
    return {
        "name": recorder.name,
        "rank": context.channel.rank,
        "ranks": context.channel.world_ranks,
        "calls": recorder.count,
        "broken": context.broken,
        "given_up_by": context.given_up_by,
        "under_way": context.given_up or calls_under_way(context, frames),
        "past": [
            {
                "number": call.number,
                "call": call.text,
                "seconds": time.perf_counter() - call.ended,
            }
            for call in ended
        ],
    }


def calls_under_way(context: Context, frames: dict[int, Any]) -> list[dict[str, Any]]:
    """The calls under way of a communicator. frames: of each thread."""
    ranks = context.channel.world_ranks
    return [_call(record, frames, ranks) for record in context.recorder.under_way]


def _call(record: Record, frames: dict[int, Any], ranks: Sequence[int]) -> dict[str, Any]:
    frame = frames.get(record.thread)
    peer = record.peer()
    site = site_text(record.site) or (site_of(frame) if frame is not None else "")
    return {
        "number": record.number,
        "place": record.place,
        "call": record.text,
        "where": record.where(),
        "site": site,
        "seconds": time.perf_counter() - record.begun,
        "peer": None if peer is None else ranks[peer],
        "inside": users_code(frame) if frame is not None else "",
    }
