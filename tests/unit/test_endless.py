"""Code that never comes back is interrupted, at a moment when that is heard."""

import gc
import signal
import sys
import weakref
from contextlib import suppress
from threading import Thread
from time import process_time

import pytest

from mpicoll.algorithms.allgather import ring
from mpicoll.verify import prover
from mpicoll.verify.endless import Endless, EndsWithin


def burn(seconds):
    """Compute, for the most part not in the kernel, whose time does not count."""
    begin = process_time()
    while process_time() - begin < seconds:
        sum(range(200))


class Slow:
    """What computes while Python forgets it."""

    def __del__(self):
        burn(0.1)


def test_errors_in_a_destructor_are_not_heard_so_it_is_interrupted_after_it():
    with pytest.raises(Endless), EndsWithin(0.05):
        Slow()
        burn(60)


def test_errors_in_what_the_garbage_collector_calls_are_not_heard_either(monkeypatch):
    """Where Python has nobody to raise an error to it prints it; this one is only for the block."""
    unheard = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    gc.callbacks.append(slow := lambda phase, numbers: burn(0.1))
    try:
        with pytest.raises(Endless), EndsWithin(0.05):
            gc.collect()
            burn(60)
    finally:
        gc.callbacks.remove(slow)
    kept = {1}
    weak = weakref.ref(kept, lambda gone: burn(0.1))
    with pytest.raises(Endless), EndsWithin(0.05):
        del kept
        burn(60)
    assert not weak() and not unheard


def test_it_is_tried_again_where_it_is_swallowed_and_all_is_as_before():
    with pytest.raises(Endless), EndsWithin(0.05):
        try:
            burn(60)
        except BaseException:
            burn(60)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0) and signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_it_never_escapes_from_what_begins_and_ends_the_limit():
    """Wherever the signal comes: either the block is interrupted, or nothing is, and no timer is left."""
    for microseconds in range(1, 400):
        with suppress(Endless), EndsWithin(microseconds * 1e-6):
            burn(microseconds * 1e-6)
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    burn(0.2)


def test_the_limit_is_one_for_each_rank(monkeypatch):
    """Ranks that take less each may take more together: 512 ranks of our algorithms did."""
    def slow_ring(rank, size):
        burn(0.1)
        yield from ring(rank, size)

    monkeypatch.setattr(prover, "_LONGEST", 0.4)
    prover.check("allgather", slow_ring, 8)


def test_other_threads_are_let_alone():
    done = []

    def run():
        with EndsWithin(0.01):
            burn(0.1)
        done.append(True)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert done
