"""The heap, and pools of scratch: what interrupts an allocation or a release may allocate and release, too."""

import os
import sys

import numpy as np
import pytest

from mpicoll.execute import pool
from mpicoll.execute.pool import ScratchPool
from mpicoll.errors import SharedMemoryError
from mpicoll.shared_memory import heap, ranges
from mpicoll.shared_memory.bell import Bell
from mpicoll.shared_memory.heap import Heap
from mpicoll.support import turn

#: bytes: some of a page, and more than a segment of small blocks
SMALL, LARGE = 1000, 70 << 20


class Interrupting:
    """Calls `handler` before one line of these modules, as a signal handler is called. lines: met so far."""

    def __init__(self, handler, at):
        self._handler, self._at = handler, at
        self.lines = 0

    def __call__(self, work):
        before = sys.gettrace()
        files = heap.__file__, ranges.__file__, pool.__file__, turn.__file__
        sys.settrace(lambda frame, *_: self._look if frame.f_code.co_filename in files else None)
        try:
            work()
        finally:
            sys.settrace(before)

    def _look(self, frame, event, _):
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                before = sys.gettrace()
                sys.settrace(None)
                self._handler()
                sys.settrace(before)
        return self._look


class Arrays:
    """Arrays of a heap, each with a number in its first and last element that no other array has."""

    def __init__(self):
        self.heap, self._made, self.living = Heap(), 0, []

    def add(self, nbytes):
        self._made += 1
        x = self.heap.array((nbytes,), np.dtype(np.uint8))
        x[0] = x[-1] = self._made % 251
        self.living.append((self._made, x))
        return x

    def work(self):
        """One more of each size, others less, and new pages for one."""
        for nbytes in (SMALL, LARGE, SMALL):
            x = self.add(nbytes)
        self.heap.detach(x.ctypes.data, x.nbytes)
        del self.living[0], self.living[-3:-1], x
        self.heap.release(self.heap.acquire(SMALL))

    def require_apart(self):
        places = sorted((x.ctypes.data, x.ctypes.data + x.nbytes) for _, x in self.living)
        assert all(end <= begin for (_, end), (begin, _) in zip(places, places[1:])), places
        for number, x in self.living:
            assert x[0] == x[-1] == number % 251
            place = self.heap.location(x.ctypes.data, x.nbytes)
            with open(f"/proc/self/fd/{self.heap.descriptor()}", "rb") as file:
                file.seek(place)
                assert file.read(1)[0] == number % 251


def test_everything_may_be_interrupted():
    """Before each line in turn."""
    arrays = Arrays()
    at = most = 1
    while at <= most:
        arrays.living.clear()
        for nbytes in (SMALL, LARGE, SMALL):
            arrays.add(nbytes)
        interrupting = Interrupting(arrays.work, at)
        interrupting(arrays.work)
        arrays.require_apart()
        most = max(most, min(interrupting.lines, 1000))
        at += 1
    assert most > 200
    entered = arrays.heap._file().table.segments()
    assert all(entered[segment.offset] == segment.nbytes for segment in arrays.heap.ranges.segments)
    os.close(arrays.heap.descriptor())


def test_the_first_allocation_may_be_interrupted():
    """Before each line in turn: it makes the file."""
    at = most = 1
    while at <= most:
        arrays = Arrays()

        def first():
            arrays.add(SMALL)

        def handler():
            arrays.add(SMALL)
            arrays.add(LARGE)

        interrupting = Interrupting(handler, at)
        interrupting(first)
        most = max(most, interrupting.lines)
        at += 1
        arrays.require_apart()
        os.close(arrays.heap.descriptor())
    assert most > 60


def test_a_pool_may_be_interrupted(monkeypatch):
    """It gives no vector away twice, and knows in the end what lies idle."""
    monkeypatch.setattr(pool, "IDLE_BYTES", 40_000)
    monkeypatch.setattr(pool, "RECENT", 5)
    at = most = 1
    while at <= most:
        scratch, used = ScratchPool(), []

        def work(sizes=(1000, 5000, 9000, 20_000, 5000, 9000)):
            for nbytes in sizes:
                used.append(scratch.acquire(nbytes))
            for _ in sizes[1:]:
                scratch.release(used.pop(0))

        work()
        interrupting = Interrupting(work, at)
        interrupting(work)
        most = max(most, interrupting.lines)
        at += 1
        idle = scratch.idle()
        assert len({id(vector) for vector in [*used, *idle]}) == len(used) + len(idle)
    assert most > 100


# A program that closes all descriptors, as one that becomes a daemon does: a file of its own may have the same ones.


@pytest.fixture
def of_the_user(tmp_path):
    """A function that closes a descriptor and opens a file as this one; returns what is read there."""
    path = tmp_path / "mine"
    path.write_bytes(bytes(range(256)) * 100)
    taken = []

    def take(descriptor):
        with open(path, "r+b") as file:
            os.dup2(file.fileno(), descriptor)
        taken.append(descriptor)
        return path.read_bytes

    yield take
    for descriptor in taken:
        os.close(descriptor)


def test_the_heap_writes_to_no_file_of_the_user(of_the_user, monkeypatch):
    owner = Heap()
    monkeypatch.setattr(heap, "HEAP", owner)
    arrays = [owner.array((count,), np.dtype("u1")) for count in (2 << 20, SMALL)]
    arrays[1][:] = 3
    read = of_the_user(owner.descriptor())
    before = read()
    owner.detach(arrays[1].ctypes.data, SMALL)
    del arrays[0]  # its memory would be given back
    with pytest.raises(SharedMemoryError, match="the program has closed the descriptor of shared memory"):
        owner.acquire(LARGE)
    fresh = heap.shared_array(SMALL, "u1", shared=True)
    assert owner.location(fresh.ctypes.data, SMALL) is None and (arrays[0] == 3).all() and read() == before


def test_the_bell_uses_no_file_of_the_user(of_the_user):
    bell = Bell()
    ends = bell.place()[0], bell.descriptor()
    read = [of_the_user(descriptor) for descriptor in ends][0]
    before = read()
    bell.wake()
    assert bell.words() == b"" and read() == before
