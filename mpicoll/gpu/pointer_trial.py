"""The job of a trial: two ranks exchange and reduce device memory as schedules do, and check it.

It may crash or hang, so it never runs in a user's program: `awareness` starts it as a separate job.
On an error it prints a line, and its exit status is not 0.
"""

import faulthandler
import signal
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from ..support.gpus import use_local_device
from ..support.optional import require
from ..support.quirks import library_text

#: bytes of messages: eager, with a rendezvous, and pipelined
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
#: seconds that the trial may take
LIMIT = 90
SAID = "trial: "


def main() -> None:
    """Run on two ranks."""
    faulthandler.enable()  # prints the place of a crash
    signal.alarm(LIMIT + 10)  # ends a rank that the launcher left behind
    comm = MPI.COMM_WORLD
    try:
        _try(comm)
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{SAID}rank {comm.Get_rank()}: {words}", flush=True)
        time.sleep(0.5)  # quirk: abort-loses-output
        comm.Abort(1)
    if comm.Get_rank() == 0:
        sizes = f"{SIZES[0]} bytes to {SIZES[-1] >> 20} MiB"
        print(f"{SAID}{sizes} of device memory arrived right", flush=True)


def _try(comm: MPI.Intracomm) -> None:
    if comm.Get_size() != 2:
        library = repr(library_text()[:40])
        reason = f"this mpiexec and {library} do not understand each other"
        raise RuntimeError(f"expected 2 ranks, got {comm.Get_size()}: {reason}")
    use_local_device(comm)
    cupy = require("cupy")
    for nbytes in SIZES:
        for persistent in (False, True):
            _exchange(comm, cupy, nbytes // 4, persistent)


def _exchange(comm: MPI.Intracomm, cupy: Any, count: int, persistent: bool) -> None:
    """Exchange the inner part of an array with the other rank, and add both on the device."""
    rank = comm.Get_rank()
    own = _values(count, rank, persistent)
    of_peer = _values(count, 1 - rank, persistent)
    sent = cupy.asarray(own)
    received = cupy.asarray(np.full_like(own, -1))
    total = cupy.asarray(np.zeros_like(own))
    cupy.cuda.get_current_stream().synchronize()
    for request in _requests(comm, sent[1:-1], received[1:-1], persistent):
        request.Wait()
    _compare(cupy.asnumpy(received)[1:-1], of_peer[1:-1], count, "received")
    _compare(cupy.asnumpy(received)[[0, -1]], np.full(2, -1), count, "beside what was received")
    cupy.add(sent, received, out=total)
    _compare(cupy.asnumpy(total)[1:-1], (own + of_peer)[1:-1], count, "sum")


def _values(count: int, rank: int, persistent: bool) -> "np.ndarray[Any, Any]":
    return np.arange(count + 2, dtype=np.int32) * (3 + 2 * rank) + 7 * persistent


def _requests(comm: MPI.Intracomm, sent: Any, received: Any, persistent: bool) -> list[Any]:
    peer = 1 - comm.Get_rank()
    source = [sent, sent.nbytes, MPI.BYTE]
    target = [received, received.nbytes, MPI.BYTE]
    if not persistent:
        return [comm.Irecv(target, peer), comm.Isend(source, peer)]
    requests: list[Any] = [comm.Recv_init(target, peer), comm.Send_init(source, peer)]
    MPI.Prequest.Startall(requests)
    return requests


def _compare(values: Any, expected: Any, count: int, what: str) -> None:
    wrong = np.flatnonzero(values != expected)
    if wrong.size:
        first = int(wrong[0])
        raise ValueError(
            f"{what}: of a message of {4 * count} bytes {wrong.size} numbers are wrong, "
            f"the first is {values[first]}, expected {expected[first]}"
        )
