"""A job of which rank 1 is interrupted by a signal whose handler raises in a collective: python interrupted.py SIGNAL.

All ranks get an error, MPI's memory stays whole, another communicator works, and the program comes to its end.
"""

import gc
import itertools
import signal
import sys

import numpy as np
from mpi4py import MPI

import mpicoll

NUMBER = {"alarm": signal.SIGALRM, "interrupt": signal.SIGINT}[sys.argv[1]]


class Interrupted(Exception):
    """What the handler raises."""


def handler(number, frame):
    """Raise in the middle of the call for which rank 2 is late; where it has not begun, try again a little later.

    What is raised while a call waits is held until that has ended, or until nothing has moved for a second.
    """
    while frame is not None and frame.f_code.co_name != "wait_for":
        frame = frame.f_back
    if made < LATE or frame is None or not frame.f_locals["call"].unfinished:
        signal.setitimer(signal.ITIMER_REAL, 0.003)
    elif NUMBER == signal.SIGINT:
        signal.raise_signal(signal.SIGINT)
    else:
        raise Interrupted


#: the call for which rank 2 is late, until rank 1 has given it up
LATE = 10
made = 0
comm = mpicoll.Communicator(MPI.COMM_WORLD.Dup())
if comm.Get_rank() == 1:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    for made in itertools.count():
        if made == LATE and comm.Get_rank() == 2:
            MPI.COMM_WORLD.recv(source=1)
        comm.Allreduce(np.ones(300_000), np.zeros(300_000), algorithm="ring", segment_bytes=1 << 16)
except (Interrupted, KeyboardInterrupt, mpicoll.MpicollError) as error:
    print("rank", comm.Get_rank(), type(error).__name__, flush=True)
    if comm.Get_rank() == 1:
        MPI.COMM_WORLD.send(None, 2)

junk = [np.full(300_000, -1.0) for _ in range(20)]  # takes the place of what was given back
gc.collect()
other = mpicoll.Communicator(MPI.COMM_WORLD.Dup())
x = np.ones(300_000)
for _ in range(20):
    other.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
assert (x == float(comm.Get_size()) ** 20).all()
try:
    comm.Allreduce(MPI.IN_PLACE, x)
except mpicoll.MpicollError as error:
    print("rank", comm.Get_rank(), "refused:", str(error).splitlines()[0], flush=True)
comm.Free()
assert all((one == -1).all() for one in junk)
print("done", flush=True)
