"""Ranks that are killed, at a moment that every run has."""

import os
import signal

from mpi4py import MPI


def die(victim: int) -> None:
    """Kill that rank of COMM_WORLD once all others have come here: none is still in an earlier call."""
    world = MPI.COMM_WORLD
    if world.Get_rank() != victim:
        world.send(None, victim)
        return
    for other in range(world.Get_size()):
        if other != victim:
            world.recv(source=other)
    os.kill(os.getpid(), signal.SIGKILL)
