"""The job of `kills`: random collectives or training, in which something happens to one rank.

    mpiexec -n 3 python -m benchmarks.run.killed \\
        '{"seed": 1, "work": "calls", "what": "killed", "victim": 2, …}'

All ranks draw the same random numbers, so they make the same calls; each result is checked.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook

#: by whom it is done: a process beside the rank, whatever the rank is in, or the rank itself, by a
#: handler of SIGALRM
FROM_OUTSIDE = {"killed": "KILL", "stopped": "STOP"}
#: what a program is stuck in for longer than anybody waits
LONG = 600
ALGORITHMS = {
    "Allreduce": (None, "native", "ring", "recursive_doubling", "hierarchical"),
    "Bcast": (None, "native", "binomial", "pipeline", "scatter_allgather"),
    "Allgather": (None, "native", "ring", "bruck"),
    "Reduce_scatter_block": (None, "native", "ring", "circulant"),
}


@dataclass(frozen=True)
class Happening:
    """What happens to which rank, how many seconds after all are ready. folder: where the job
    leaves files.
    """

    what: str
    victim: int
    after: float
    folder: Path
    due: threading.Event = field(default_factory=threading.Event)

    def arm(self, comm: Communicator, between_calls: bool) -> None:
        """Let it happen. between_calls: `happen` is called there, when it is `due`. Collective."""
        (self.folder / f"ready-{comm.rank}").touch()
        comm.Barrier()
        if comm.rank != self.victim or self.what == "cut":
            return
        if self.what in FROM_OUTSIDE:
            act = (
                f'sleep {self.after}; date +%s.%N > "$0"; kill -{FROM_OUTSIDE[self.what]}'
                f" {os.getpid()}"
            )
            subprocess.Popen(["sh", "-c", act, str(self.folder / "happened")])
        else:
            # a program gets stuck in its own code, and raises anywhere
            later = between_calls and self.what not in ("raised", "exited")
            signal.signal(
                signal.SIGALRM, lambda number, frame: self.due.set() if later else self.happen()
            )
            signal.setitimer(signal.ITIMER_REAL, self.after)

    def happen(self) -> None:
        """It happens."""
        (self.folder / "happened").write_text(str(time.time()))
        if self.what == "raised":
            raise RuntimeError("what this rank was to raise")
        if self.what == "exited":
            sys.exit("what this rank was to say")
        until = time.monotonic() + LONG
        while self.what == "busy" and time.monotonic() < until:
            pass
        # a call into C: `PyDLL` keeps the interpreter's lock meanwhile, so that no other thread of
        # the process runs
        {"asleep": time.sleep, "holding": ctypes.PyDLL(None).sleep}.get(self.what, id)(LONG)


def main() -> None:
    install_abort_hook()
    plan: dict[str, Any] = json.loads(sys.argv[1])
    happening = Happening(plan["what"], plan["victim"], plan["after"], Path(plan["folder"]))
    comm = Communicator(MPI.COMM_WORLD)
    if plan["work"] == "calls":
        Calls(comm, Random(plan["seed"])).make(happening)
    else:
        happening.arm(comm, between_calls=False)
        train(plan["work"], happening.folder / "checkpoints")


def train(options: list[str], folder: Path) -> None:
    """Train for long, with checkpoints."""
    from mpicoll.cli import main as mpicoll

    mpicoll(
        [
            "train",
            *options,
            "--steps",
            "1000000",
            "--checkpoint",
            str(folder),
            "--checkpoint-every",
            "10",
        ]
    )


class Calls:
    """Random calls on a communicator, a duplicate, and a half of it."""

    def __init__(self, comm: Communicator, random: Random) -> None:
        self.comm = comm
        self.random = random
        self.comms = [comm, comm, comm.Dup(), comm.Split(comm.rank % 2)]
        self.plans = [self._prepared(method) for method in ALGORITHMS]

    def make(self, happening: Happening) -> None:
        """Make them for long; it happens after the first few."""
        until = time.monotonic() + LONG
        for number in range(1_000_000):
            if number == 4:
                happening.arm(self.comm, between_calls=True)
            if happening.due.is_set():
                happening.happen()
            self.random.choice((self._blocking, self._blocking, self._begun, self._started))()
            if time.monotonic() > until:
                sys.exit("nothing happened")

    def _blocking(self) -> None:
        comm, method, algorithm, send, receive = self._drawn()
        getattr(comm, method)(*arguments(method, send, receive), algorithm=algorithm)
        check(comm, method, receive)

    def _begun(self) -> None:
        """Some at a time, waited for in another order."""
        begun = []
        for _ in range(self.random.randint(1, 3)):
            comm, method, algorithm, send, receive = self._drawn()
            request = getattr(comm, f"I{method.lower()}")(
                *arguments(method, send, receive), algorithm=algorithm
            )
            begun.append((request, comm, method, receive))
        self.random.shuffle(begun)
        for request, comm, method, receive in begun:
            request.Wait()
            check(comm, method, receive)

    def _started(self) -> None:
        plan, comm, method, send, receive = self.random.choice(self.plans)
        fill(comm, method, send, receive)
        plan.Start()
        plan.Wait()
        check(comm, method, receive)

    def _prepared(self, method: str) -> tuple[Any, ...]:
        comm, _, algorithm, send, receive = self._drawn(method)
        plan = getattr(comm, f"{method}_init")(
            *arguments(method, send, receive), algorithm=algorithm
        )
        return plan, comm, method, send, receive

    def _drawn(self, method: str | None = None) -> tuple[Any, ...]:
        """(communicator, method, algorithm, what is sent, where it comes)"""
        comm = self.random.choice(self.comms)
        method = method or self.random.choice(list(ALGORITHMS))
        algorithm = self.random.choice(ALGORITHMS[method])
        count = self.random.choice((1, 1000, 100_000))
        sent = comm.size * count if method == "Reduce_scatter_block" else count
        received = comm.size * count if method == "Allgather" else count
        send = np.empty(sent)
        receive = np.empty(received)
        fill(comm, method, send, receive)
        return comm, method, algorithm, send, receive


def arguments(method: str, send: Any, receive: Any) -> tuple[Any, ...]:
    return (receive,) if method == "Bcast" else (send, receive)


def fill(comm: Communicator, method: str, send: Any, receive: Any) -> None:
    send[:] = comm.rank + 1
    receive[:] = 1 if method == "Bcast" and comm.rank == 0 else -1


def check(comm: Communicator, method: str, receive: Any) -> None:
    """Raise AssertionError for a wrong result."""
    if method == "Bcast":
        good = receive == 1
    elif method == "Allgather":
        good = receive.reshape(comm.size, -1).T == np.arange(1, comm.size + 1)
    else:
        good = receive == comm.size * (comm.size + 1) / 2
    assert np.all(good), f"wrong result of {method} on {comm.size} ranks"


if __name__ == "__main__":
    main()
