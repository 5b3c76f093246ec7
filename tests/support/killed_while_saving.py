"""A job that verifies the checkpoint it finds, then saves one after the other until one rank kills itself.

`python -m tests.support.killed_while_saving DIRECTORY [RANK MOMENT]`, under mpiexec by test_killed_while_saving.py: that
rank dies at that file operation (an integer) or after that time (seconds). Without them it verifies only.
"""

import itertools
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpicoll.launch import install_abort_hook
from mpicoll.train.checkpoint.directory import Checkpoints
from mpicoll.train.checkpoint.format import check_file, read_manifest

SIZE = 200_003
#: what Python reports to audit hooks whenever a save touches the disk
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.listdir", "os.scandir")


def state(step):
    return np.arange(SIZE) * 0.5 + step


def kill_this_process(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(moment):
    """SIGKILL at the file operation of this number from now on, or after this time if it is no integer."""
    if not moment.isdecimal():
        threading.Timer(float(moment), kill_this_process).start()
        return
    left = itertools.count(int(moment), -1)
    sys.addaudithook(lambda event, _: event in OPERATIONS and next(left) == 0 and kill_this_process())


def check_all(directory):
    """Everything that has the name of a checkpoint is whole, the oldest too."""
    for path in Path(directory).glob("step-*"):
        for rank, file in enumerate(read_manifest(path)["files"]):
            check_file(path, rank, file)


def verified(checkpoint, returned):
    """The step found: the last save that returned, or the one after it, with every element right."""
    step = checkpoint.step if checkpoint else 0
    last = int(returned.read_text()) if returned.exists() else 0
    assert step in (last, last + 1), f"found step {step}, the last save that returned was {last}"
    if checkpoint:
        assert checkpoint.meta == {"step": step} and (checkpoint.read("x", 0, SIZE) == state(step)).all()
    return step


def job(directory, victim=None, moment=None):
    install_abort_hook()
    comm, returned = MPI.COMM_WORLD, Path(directory) / "returned"
    rank, size = comm.Get_rank(), comm.Get_size()
    checkpoints = Checkpoints(directory, comm, keep=2)
    check_all(directory)
    step = verified(checkpoints.load(), returned)
    comm.Barrier()
    print(f"rank {rank} found step {step} and verified it", flush=True)
    if rank == int(victim or -1):
        kill_at(moment)
    low, high = SIZE * rank // size, SIZE * (rank + 1) // size
    while victim:
        if rank == 0:  # of the one found too: its save may not have returned
            returned.with_suffix(".new").write_text(str(step))
            returned.with_suffix(".new").rename(returned)
        step += 1
        checkpoints.save(step, {"x": [(low, state(step)[low:high])]}, {"x": SIZE}, {"step": step})


if __name__ == "__main__":
    job(*sys.argv[1:])
