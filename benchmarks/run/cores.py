"""What the system needs to move bytes: plain TCP between the ranks, and its processor seconds."""

import os
import socket
import threading
import time
from pathlib import Path

from mpi4py import MPI

#: bytes of one call to the system
PIECE = 256 << 10
#: seconds of looking at what else runs
IDLE = 0.5


def seconds_to_move(comm, nbytes, times=3):
    """Seconds of this machine's processors, all of them together, while each rank sends so many
    bytes to the next one.

    The system's own count, so that the kernel's part is in it, without what ran before all this;
    the least of some attempts.
    """
    outgoing, incoming = _ring(comm)
    with outgoing, incoming:
        elsewhere = comm.bcast(_elsewhere())
        return min(
            max(0.0, _moved(comm, outgoing, incoming, nbytes, elsewhere)) for _ in range(times)
        )


def _elsewhere():
    """Seconds per second that the processors have other things to do: the ranks wait meanwhile,
    asleep.
    """
    before = _busy()
    time.sleep(IDLE)
    return (_busy() - before) / IDLE


def _ring(comm):
    """Sockets to the next rank and from the one before."""
    with socket.create_server(("", 0)) as server:
        everyone = comm.allgather((_own_address(), server.getsockname()[1]))
        outgoing = socket.create_connection(everyone[(comm.Get_rank() + 1) % comm.Get_size()])
        incoming, _ = server.accept()
    return outgoing, incoming


def _own_address():
    return socket.gethostbyname(MPI.Get_processor_name())


def _moved(comm, outgoing, incoming, nbytes, elsewhere):
    comm.Barrier()
    before = _busy()
    began = time.perf_counter()
    sender = threading.Thread(target=_send, args=(outgoing, nbytes))
    sender.start()
    memory = memoryview(bytearray(PIECE))
    while nbytes:
        nbytes -= incoming.recv_into(memory[:nbytes], 0, socket.MSG_WAITALL)
    sender.join()
    comm.Barrier()
    return comm.bcast(_busy() - before - elsewhere * (time.perf_counter() - began))


def _send(outgoing, nbytes):
    memory = memoryview(bytearray(PIECE))
    while nbytes:
        piece = min(nbytes, PIECE)
        outgoing.sendall(memory[:piece])
        nbytes -= piece


def _busy():
    """Seconds that the processors were not idle, since the system started."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
