"""Cores: where ranks may run, how fast each computes and what, and who else is there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ..support.node import BLAS_VARIABLES
from ..support.optional import require
from .records import CoreResult

#: elements of the fixed computation, which fit into a core's own cache; and its repetitions
_ELEMENTS = 1 << 14
_STEPS = 400
#: bytes of the copy that shows the memory's bandwidth
_COPIED = 32 << 20
#: how often each is timed
_TIMES = 3
#: seconds of looking at what runs while all ranks sleep
ASLEEP = 0.5
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cores_of(numbers: Iterable[int]) -> tuple[int, ...]:
    """The cores that these processors belong to, each as its lowest processor.

    Without /sys each processor is a core.
    """
    return tuple(sorted({_siblings(number) for number in numbers}))


def _siblings(number: int) -> int:
    path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
    try:
        return int(path.read_text(encoding="ascii").replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return number


def threads(environ: Mapping[str, str], processors: int) -> tuple[int, str]:
    """(threads that BLAS starts, the variable that says so or "").

    >>> threads({"OMP_NUM_THREADS": "4,2"}, 8), threads({}, 8)
    ((4, 'OMP_NUM_THREADS'), (8, ''))
    """
    for name in BLAS_VARIABLES:
        text = environ.get(name, "").split(",")[0].strip()
        if text.isdecimal() and int(text):
            return int(text), name
    return processors, ""


def limited_threads(number: int) -> int:
    """The threads that BLAS really has, where threadpoolctl can tell; else `number`."""
    try:
        pools = require("threadpoolctl").threadpool_info()
    except Exception:  # it looks into foreign libraries, and is no more than a better guess
        return number
    return max(
        (pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=number
    )


def compute() -> int:
    """A fixed computation; the checksum of its result is the same on every processor.

    Only operations whose results IEEE 754 defines to the last bit, one at a time.
    """
    values = np.arange(1, _ELEMENTS + 1, dtype=np.float64)
    words = np.arange(_ELEMENTS, dtype=np.uint64)
    for _ in range(_STEPS):
        values *= 1.000244140625
        values += 0.3125
        np.sqrt(values, out=values)
        words *= np.uint64(6364136223846793005)
        words += np.uint64(1442695040888963407)
    return crc32(words.tobytes(), crc32(values.tobytes()))


def measure(rank: int, idle: tuple[float, str]) -> CoreResult:
    """Time the computation and a copy in memory, on this rank alone.

    idle: as `while_asleep` gives it. Processor seconds do not count what others do on the core;
    their part is in the share.
    """
    digests = set()
    seconds = []
    shares = []
    for _ in range(_TIMES):
        begin = time.perf_counter()
        cpu = time.thread_time()
        digests.add(compute())
        used = time.thread_time() - cpu
        seconds.append(used)
        shares.append(used / (time.perf_counter() - begin))
    return CoreResult(
        rank, min(seconds), min(1.0, max(shares)), tuple(sorted(digests)), _memory(), *idle
    )


def _memory() -> float:
    """Bytes read and written per processor second by a copy."""
    source: np.ndarray[Any, np.dtype[np.uint8]] = np.ones(_COPIED, np.uint8)
    target = np.zeros_like(source)
    best = float("inf")
    for _ in range(_TIMES):
        begin = time.thread_time()
        np.copyto(target, source)
        best = min(best, time.thread_time() - begin)
    return 2 * _COPIED / max(best, 1e-9)


def while_asleep(numbers: Iterable[int]) -> tuple[float, str]:
    """(part of the time that these processors are busy, the busiest process on them), asleep.

    Zero and "" where /proc does not tell.
    """
    before = _times()
    running = _processes()
    time.sleep(ASLEEP)
    after = _times()
    chosen = [number for number in numbers if number in before and number in after]
    total = sum(after[number][1] - before[number][1] for number in chosen)
    busy = sum(after[number][0] - before[number][0] for number in chosen)
    if not total:
        return 0.0, ""
    return busy / total, _busiest(running, _processes(), set(chosen))


def _times() -> dict[int, tuple[int, int]]:
    """{processor: (ticks that it was busy or taken by the hypervisor, all ticks)}."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    times = {}
    for line in lines:
        name, *figures = line.split()
        if name.startswith("cpu") and name[3:].isdecimal():
            # user nice system idle iowait irq softirq steal; guests are part of user
            ticks = list(map(int, figures[:8]))
            idle = sum(ticks[3:5])
            times[int(name[3:])] = (sum(ticks) - idle, sum(ticks))
    return times


def _processes() -> dict[str, tuple[int, int, str]]:
    """{pid: (ticks used, the processor last used, name)} of the processes that are seen."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            name = text[text.index("(") + 1 : text.rindex(")")]
            fields = text[text.rindex(")") + 2 :].split()
            found[path.parent.name] = int(fields[11]) + int(fields[12]), int(fields[36]), name
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    return found


def _busiest(
    before: Mapping[str, tuple[int, int, str]],
    after: Mapping[str, tuple[int, int, str]],
    chosen: set[int],
) -> str:
    """The process that used most of these processors' time, if it is a fifth of one or more."""
    used = {
        pid: ticks - before[pid][0]
        for pid, (ticks, processor, _) in after.items()
        if pid in before and processor in chosen and int(pid) != os.getpid()
    }
    pid = max(used, key=lambda pid: used[pid], default="")
    if not pid or used[pid] < ASLEEP * _TICKS / 5:
        return ""
    return f"{after[pid][2]} (pid {pid})"
