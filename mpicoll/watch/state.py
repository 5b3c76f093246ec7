"""What this process is doing, as plain data: see `mpicoll.reports`. Nothing here calls MPI, in which the job may be stuck."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from ..execute import Context, Record
from ..reports import SCHEMA, State
from ..support.callsite import site_of, users_code


def state_of_process(rank: int, size: int, **more: Any) -> State:
    """The state of this process now. rank, size: in the world; more: what it does not say of itself."""
    frames = sys._current_frames()
    main = frames.get(threading.main_thread().ident or 0)
    return {
        "schema": SCHEMA, "rank": rank, "size": size, "host": socket.gethostname(), "pid": os.getpid(),
        "time": time.time(), "at": site_of(main) if main is not None else "", **more,
        "communicators": [_communicator(context, frames) for context in Context.living()],
    }  # fmt: skip


def _communicator(context: Context, frames: dict[int, Any]) -> dict[str, Any]:
    return {
        "name": context.channel.name, "rank": context.channel.rank, "ranks": context.channel.world_ranks,
        "calls": context.recorder.count, "broken": context.broken,
        "under_way": context.given_up or calls_under_way(context, frames),
        "past": [{"number": one.number, "call": one.text, "seconds": time.perf_counter() - one.ended}
                 for one in list(context.recorder.past)],
    }  # fmt: skip


def calls_under_way(context: Context, frames: dict[int, Any]) -> list[dict[str, Any]]:
    """Those of a communicator. frames: of each thread."""
    ranks = context.channel.world_ranks
    return [_call(record, frames, ranks) for record in context.recorder.under_way]


def _call(record: Record, frames: dict[int, Any], ranks: Sequence[int]) -> dict[str, Any]:
    frame, peer = frames.get(record.thread), record.peer()
    site = record.site or (site_of(frame) if frame is not None else "")
    inside = users_code(frame) if frame is not None else ""
    return {
        "number": record.number, "call": record.text, "where": record.where(), "site": site,
        "seconds": time.perf_counter() - record.begun, "peer": None if peer is None else ranks[peer],
        "inside": inside,
    }  # fmt: skip
