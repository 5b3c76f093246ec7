"""Children in the middle of a program: they write to all arrays, forget some, make others."""

import os
import warnings

import numpy as np

#: what a child returns where its own arrays are wrong
_WRONG = 3
_LENGTH = 40_000


def problem_of_child(rooms, keepsakes, comm) -> str:
    """Fork, and wait for the child; what was wrong in it. This process must not see what it writes."""
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            status = _live(rooms, keepsakes, comm)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return f"a child ended with status {status}" if status else ""


def _live(rooms, keepsakes, comm) -> int:
    """In the child; its exit status."""
    private = [comm.empty(_LENGTH) for _ in range(2)]
    for number, array in enumerate(private):
        array[:] = number
    for room in rooms:
        room.view(np.uint8)[...] = 0xA5
    kept_bytes = [one.array.view(np.uint8) for one in keepsakes]  # of any type
    for array in kept_bytes:
        array[...] = 0x5A
    written = all((array == 0x5A).all() for array in kept_bytes)
    kept_bytes.clear()
    keepsakes.clear()
    private.append(comm.empty(_LENGTH))
    private[-1][:] = 2
    kept = all((array == number).all() for number, array in enumerate(private))
    return 0 if written and kept else _WRONG
