"""Run a program in which ranks are killed: `python -m benchmarks.run.dying DEATHS SCRIPT|MODULE [ARGUMENT…]`, on ranks.

DEATHS: JSON, `[[rank, "package.module:Class.method", call], …]`. The rank sends itself SIGKILL at that call of the method,
counted from 1: before it, so a method in the middle of a phase is a death in the middle of that phase. With EVERYONE for the
rank nobody dies: from that call on it fails on all ranks, as where a disk is full.
"""

import errno
import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

#: a file to which the time of each death is added
DEATHS = "MPICOLL_DEATHS"
EVERYONE = -1


def arm(place: str, call: int, act: Callable[[str, int], object]) -> None:
    """Call act(place, call) there, from that call on."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    real, left = getattr(owner, name), [call]

    def dying(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 1:
            act(place, call)
        return real(*given, **named)

    setattr(owner, name, dying)


def die(place: str, call: int) -> None:
    """Leave the time of death, and die."""
    if path := os.environ.get(DEATHS):
        with open(path, "a") as file:
            file.write(f"{time.time()} {MPI.COMM_WORLD.rank} {place} {call}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def fill(place: str, call: int) -> None:
    """As if the disk were full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main() -> None:
    deaths, program, *arguments = sys.argv[1:]
    for rank, place, call in json.loads(deaths):
        if rank in (MPI.COMM_WORLD.rank, EVERYONE):
            arm(place, call, fill if rank == EVERYONE else die)
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
