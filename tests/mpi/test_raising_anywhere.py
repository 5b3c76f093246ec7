"""A signal handler that raises anywhere in a call: the call was not begun, or ends well, or all ranks are told why not."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE < 2, reason="waits for another rank")]

PACKAGE = str(Path(mpicoll.__file__).parent)
#: calls before the one that is interrupted: that is compared, or like an earlier one, or goes through a door
CALLS_BEFORE = {"first": 0, "second": 1, "third": 2}
CALLS = 5
TOTAL = SIZE * (SIZE + 1) // 2
#: elements: blocks for 2, 3 and 4 ranks
COUNT = 120


class Raised(Exception):
    """What the handler raises."""


class AtPoint:
    """Raises at the point of this number that the thread comes to in mpicoll: where calls begin and end, as handlers do."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, argument):
        if event not in ("call", "return", "c_return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        self.left -= 1
        if not self.left:
            sys.setprofile(None)
            raise Raised(f"{event} {frame.f_code.co_filename}:{frame.f_lineno}")


def allreduce(comm, x, y):
    comm.Allreduce(x, y, algorithm="ring")


def iallreduce(comm, x, y):
    comm.Iallreduce(x, y, algorithm="ring").Wait()


def bcast(comm, x, y):
    y[:] = TOTAL if RANK == 0 else 0
    comm.Bcast(y, algorithm="binomial")


def alltoall(comm, x, y):
    comm.Alltoall(np.full_like(x, TOTAL), y, algorithm="pairwise")


def interrupted(call, calls_before, point):
    """Calls of which one is interrupted on rank 0: (whether it was, whether the communicator was given up)."""
    comm = mpicoll.Communicator(WORLD.Dup())
    context = comm._context
    x = np.full(COUNT, RANK + 1.0)
    error = None
    at = ""
    made = 0
    while made < CALLS and error is None:
        y = np.zeros(COUNT)
        places = context.recorder.places
        if RANK == 0 and made == calls_before and not at:
            sys.setprofile(AtPoint(point))
        try:
            call(comm, x, y)
        except Raised as raised:
            at = str(raised)
        except mpicoll.MpicollError as raised:
            error = raised
        finally:
            sys.setprofile(None)
        if context.recorder.places == places:  # it had not begun
            continue
        while context.queue.tasks and not context.broken:  # the wait for it was ended, and not the call
            time.sleep(1e-4)
        assert context.broken or (y == TOTAL).all(), (at, made, y)
        made += 1
    if error is not None and RANK:
        assert "rank 0" in str(error) and not isinstance(error, mpicoll.CollectiveMismatch), (at, error)
    comm.Free()
    return WORLD.bcast(bool(at)), WORLD.allreduce(error is not None, MPI.MAX)


@pytest.mark.parametrize("calls_before", CALLS_BEFORE)
@pytest.mark.parametrize("call", [allreduce, iallreduce, bcast, alltoall])
def test_at_every_point(call, calls_before):
    """At the first points, and at ever fewer of those that follow."""
    point = 1
    given_up = []
    while True:
        was_interrupted, is_given_up = interrupted(call, CALLS_BEFORE[calls_before], point)
        if not was_interrupted:
            break
        given_up.append(is_given_up)
        point += 1 + point // 20
    assert point > 2
    assert calls_before == "third" and call is not iallreduce or len(set(given_up)) == 2
