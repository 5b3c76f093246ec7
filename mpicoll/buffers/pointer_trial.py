"""What the job of a trial does: two ranks exchange and reduce device memory as schedules do, and compare every value.

It may crash or hang, so it never runs in a user's program: `awareness` starts it as a job of its own. Where something is
wrong a line says what, and the exit status is not 0.
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

#: bytes: what MPI sends at once, after asking, and in pieces
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
#: seconds that it may take; a rank that was left behind ends itself a little later
LIMIT = 90
SAID = "trial: "


def main() -> None:
    """Run on two ranks."""
    faulthandler.enable()  # a crash says where
    signal.alarm(LIMIT + 10)
    comm = MPI.COMM_WORLD
    try:
        _try(comm)
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{SAID}rank {comm.Get_rank()}: {words}", flush=True)
        time.sleep(0.5)  # quirk: abort-loses-output
        comm.Abort(1)
    if comm.Get_rank() == 0:
        print(f"{SAID}{SIZES[0]} bytes to {SIZES[-1] >> 20} MiB of device memory arrived right", flush=True)


def _try(comm: MPI.Intracomm) -> None:
    if comm.Get_size() != 2:
        raise RuntimeError(
            f"expected 2 ranks, got {comm.Get_size()}: this mpiexec and {library_text()[:40]!r} "
            "do not understand each other"
        )
    use_local_device(comm)
    cupy = require("cupy")
    for nbytes in SIZES:
        for persistent in (False, True):
            _exchange(comm, cupy, nbytes // 4, persistent)


def _exchange(comm: MPI.Intracomm, cupy: Any, count: int, persistent: bool) -> None:
    """Send the inner part of an array to the other rank, receive its, and add both on the device."""
    mine, theirs = _values(count, comm.Get_rank(), persistent), _values(count, 1 - comm.Get_rank(), persistent)
    sent, received, total = cupy.asarray(mine), cupy.asarray(np.full_like(mine, -1)), cupy.asarray(np.zeros_like(mine))
    cupy.cuda.get_current_stream().synchronize()
    for request in _requests(comm, sent[1:-1], received[1:-1], persistent):
        request.Wait()
    _compare(cupy.asnumpy(received)[1:-1], theirs[1:-1], count, "received")
    _compare(cupy.asnumpy(received)[[0, -1]], np.full(2, -1), count, "beside what was received")
    cupy.add(sent, received, out=total)
    _compare(cupy.asnumpy(total)[1:-1], (mine + theirs)[1:-1], count, "sum")


def _values(count: int, rank: int, persistent: bool) -> "np.ndarray[Any, Any]":
    return np.arange(count + 2, dtype=np.int32) * (3 + 2 * rank) + 7 * persistent


def _requests(comm: MPI.Intracomm, sent: Any, received: Any, persistent: bool) -> list[Any]:
    peer = 1 - comm.Get_rank()
    if not persistent:
        return [comm.Irecv([received, received.nbytes, MPI.BYTE], peer), comm.Isend([sent, sent.nbytes, MPI.BYTE], peer)]
    requests: list[Any] = [comm.Recv_init([received, received.nbytes, MPI.BYTE], peer),
                           comm.Send_init([sent, sent.nbytes, MPI.BYTE], peer)]  # fmt: skip
    MPI.Prequest.Startall(requests)
    return requests


def _compare(found: Any, wanted: Any, count: int, what: str) -> None:
    wrong = np.flatnonzero(found != wanted)
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"{what}: of a message of {4 * count} bytes {wrong.size} numbers are wrong, the first is {found[at]}, "
                         f"expected {wanted[at]}")  # fmt: skip
