"""A child process finds locks free, and garbage collection as it was in its parent."""

import gc
import threading
from time import sleep

import numpy as np
import pytest

from mpicoll.execute.pool import ScratchPool
from mpicoll.shared_memory import HEAP
from mpicoll.support.garbage import frames_of_threads, without_collection
from tests.support.forked import status_of_child


def under(lock):
    """A function that calls another one with a lock."""

    def call(function):
        with lock:
            function()

    return call


@pytest.fixture
def holding():
    """A function that has another thread call a function, which calls one that takes a moment."""
    threads = []

    def hold(function):
        inside = threading.Event()

        def stay():
            inside.set()
            sleep(0.1)

        threads.append(threading.Thread(target=function, args=(stay,)))
        threads[-1].start()
        inside.wait()

    yield hold
    for thread in threads:
        thread.join()


def test_garbage_is_collected_in_a_child_that_was_forked_while_it_was_not(holding):
    holding(without_collection)
    assert status_of_child(lambda: gc.isenabled() and frames_of_threads()) == 0
    assert gc.isenabled()


def test_a_plan_is_freed_in_a_child_that_was_forked_while_another_thread_freed_one(holding):
    pool = ScratchPool()
    scratch = pool.acquire(1000)
    holding(pool._turn.take)
    assert status_of_child(lambda: pool.release(scratch) is None and pool.acquire(1000).size >= 1000) == 0


def test_a_child_shares_nothing_where_another_thread_gave_an_array_new_pages(holding):
    array = HEAP.array((10,), np.dtype(float))
    holding(under(HEAP._lock))
    assert status_of_child(lambda: HEAP.location(array.ctypes.data, array.nbytes) is None) == 0
