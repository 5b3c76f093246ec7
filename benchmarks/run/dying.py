"""Run a program in which ranks are killed.

    python -m benchmarks.run.dying DEATHS SCRIPT|MODULE [ARGUMENT…]

Runs on ranks.

DEATHS: JSON, `[[rank, "package.module:Class.method", call], …]`. The rank sends itself SIGKILL at
that call of the method,
counted from 1: before it, so a method in the middle of a phase is a death in the middle of that
phase. With CUT as a fourth the rank asks for its host to be cut off, and goes on when that is done.
With EVERYONE for the rank nobody dies: from that call on it fails on all ranks, as where a disk is
full.
"""

import errno
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from mpi4py import MPI

#: a file to which a line is added for each death, each step of a training, and each rank that
#: leaves the dead behind
EVENTS = "MPICOLL_EVENTS"
#: how a rank is lost; and a file beside the other, with the name of the host: whoever has cut it
#: off removes the file
CUT = "cut"
EVERYONE = -1


def arm(place: str, act: Callable[..., object]) -> None:
    """Call act there before each call, with what that is given."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    real = getattr(owner, name)

    def armed(*given: Any, **named: Any) -> Any:
        act(*given)
        return real(*given, **named)

    setattr(owner, name, armed)


def since(call: int, act: Callable[[], object]) -> Callable[..., None]:
    """What calls act from its call number `call` on."""
    calls = count(1)

    def counted(*given: object) -> None:
        if next(calls) >= call:
            act()

    return counted


def note(what: str, *numbers: int) -> None:
    """Add a line, if there is a file for it."""
    if path := os.environ.get(EVENTS):
        with open(path, "a") as file:
            print(time.time(), MPI.COMM_WORLD.rank, what, *numbers, file=file)


def die() -> None:
    """Leave the time of death, and die."""
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)


@cache  # once
def ask_for_cut() -> None:
    """Have this host cut off, and wait until it is."""
    request = Path(os.environ[EVENTS]).with_name(CUT)
    request.write_text(socket.gethostname())
    while request.exists():
        time.sleep(1e-3)


def fill() -> None:
    """As if the disk were full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def observe() -> None:
    """Note the steps of a training with the number of ranks that make them, and when a rank begins
    to leave the dead behind.
    """
    arm(
        "mpicoll.train.run:Run._report",
        lambda run, *given: note("step", run._strategy.comm.Get_size(), run._done),
    )
    arm("mpicoll.communicator.communicator:Communicator.shrink", lambda *given: note("noticed"))


def main() -> None:
    deaths, program, *arguments = sys.argv[1:]
    if EVENTS in os.environ:
        observe()
    for rank, place, call, *how in json.loads(deaths):
        if rank in (MPI.COMM_WORLD.rank, EVERYONE):
            arm(
                place,
                since(call, fill if rank == EVERYONE else ask_for_cut if how == [CUT] else die),
            )
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
