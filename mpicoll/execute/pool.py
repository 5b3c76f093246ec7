"""Scratch memory that a communicator keeps for later calls."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np

from ..gpu import PAGE_LOCKED
from ..shared_memory import SHARED
from ..support.turn import Turn, drained

#: scratch that may always lie idle
IDLE_BYTES = 64 << 20
#: acquisitions of one period
RECENT = 64
_PAGE = 4096

_Kind = tuple[int | str, int]  # place, bytes


class ScratchPool:
    """Byte vectors in host or device memory for plans; they are reused, or released.

    Idle memory is at most IDLE_BYTES, or the recent peak of memory in use if that is more. Recent:
    within the last RECENT to 2 RECENT acquisitions. What has been idle longest is released first.

    Plans are made and freed by several threads. Who finds another one in the middle takes new
    memory, and leaves the rest to whoever comes next. It does not wait: a finalizer may have
    interrupted the other one, and wait for what this thread keeps. A signal handler may raise
    between any two lines, or acquire and release there: a vector is taken from its shelf in one
    call of C, and what is then wrong is set right later.
    """

    def __init__(self) -> None:
        self._turn = Turn()
        self._shelves: dict[_Kind, list[Any]] = defaultdict(list)
        #: the kinds of all idle vectors, by the address of the vector object
        self._order: OrderedDict[int, _Kind] = OrderedDict()
        #: sizes of vectors that came into use, and vectors that were given back
        self._came: deque[int] = deque()
        self._given_back: deque[tuple[_Kind, Any]] = deque()
        #: bytes
        self._in_use = 0
        self._idle = 0
        #: acquisitions so far
        self._acquired = 0
        #: the most bytes in use at a time: in the last period, in this one
        self._peaks = 0, 0

    def acquire(self, nbytes: int, module: Any = np) -> Any:
        """A byte vector of at least `nbytes`.

        module: NumPy, CuPy for device memory, `PAGE_LOCKED` or `SHARED`.
        """
        # a few sizes per power of two: little is wasted, and few different sizes fill the pool
        step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
        size = -(-nbytes // step) * step
        self._came.append(size)
        scratch = self._turn.take(self._take, (_place(module), size))
        return module.empty(size, np.uint8) if scratch is None else scratch

    def release(self, scratch: Any, module: Any = np) -> None:
        """Give a byte vector back."""
        self._given_back.append(((_place(module, scratch), scratch.size), scratch))
        self._turn.take(self._settle)

    def idle(self) -> list[Any]:
        """The idle byte vectors."""
        return [scratch for shelf in list(self._shelves.values()) for scratch in list(shelf)]

    def clear(self) -> None:
        """Release all idle memory."""
        self._turn.take(self._clear)

    # All that follows needs the turn.

    def _clear(self) -> None:
        self._settle()
        self._shelves.clear()
        self._order.clear()
        self._idle = 0

    def _take(self, kind: _Kind) -> Any:
        self._settle()
        return self._taken(self._shelves[kind], -1)

    def _settle(self) -> None:
        """See to what came and what was given back."""
        for size in drained(self._came):
            self._count(size)
        for kind, scratch in drained(self._given_back):
            self._in_use -= scratch.size
            self._idle += scratch.size
            self._shelves[kind].append(scratch)
            self._order[id(scratch)] = kind
            self._shrink()

    def _taken(self, shelf: list[Any], place: int) -> Any:
        """The vector at this end of the shelf, or None."""
        try:
            scratch = shelf.pop(place)
        except IndexError:
            return None
        self._idle -= scratch.size
        self._order.pop(id(scratch), None)
        return scratch

    def _count(self, size: int) -> None:
        """One more vector is in use; a new period begins after RECENT of them."""
        self._in_use += size
        self._acquired += 1
        last, now = self._peaks
        self._peaks = last, max(now, self._in_use)
        if self._acquired % RECENT == 0:
            self._peaks = self._peaks[1], self._in_use
            self._shrink()

    def _shrink(self) -> None:
        most = max(IDLE_BYTES, *self._peaks)
        if self._idle > most:
            self._idle = sum(scratch.size for scratch in self.idle())
        while self._idle > most:
            try:
                _, kind = self._order.popitem(last=False)
            except KeyError:  # it is empty
                return
            self._taken(self._shelves[kind], 0)


def _place(module: Any, scratch: Any = None) -> int | str:
    """The place of memory: the host, page-locked there, or the number of a device.

    Without `scratch`: of the current device.
    """
    if module is np:
        return "host"
    if module is PAGE_LOCKED:
        return "page-locked"
    if module is SHARED:
        return "shared"
    device: int = module.cuda.runtime.getDevice() if scratch is None else scratch.device.id
    return device
