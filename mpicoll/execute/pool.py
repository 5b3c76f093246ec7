"""What a communicator keeps for later calls: scratch memory, and the plans of repeated calls."""

from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

#: calls on the same memory that are recognised, per communicator, and the scratch and requests that their plans may hold
KNOWN_CALLS, KEPT_BYTES, KEPT_REQUESTS = 128, 512 << 20, 1 << 16
_PAGE = 4096


class Kept(Protocol):
    """A plan, as far as keeping and freeing it goes. scratch: bytes that it holds; requests: how many."""

    scratch: int
    requests: int

    @property
    def in_flight(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    def run(self) -> None:
        """Start and wait."""

    def Free(self) -> None:
        """Free the requests and return the scratch."""


class ScratchPool:
    """Byte vectors in host or device memory, for plans to lie in."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, int], list[Any]] = defaultdict(list)

    def acquire(self, nbytes: int, module: ModuleType = np) -> Any:
        """A byte vector of at least `nbytes`. module: NumPy, or CuPy for device memory."""
        # a few sizes per power of two: little is wasted, and calls of many sizes do not fill the pool with odd ones
        step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
        size = -(-nbytes // step) * step
        free = self._free[module.__name__, size]
        return free.pop() if free else module.empty(size, np.uint8)

    def release(self, scratch: Any, module: ModuleType = np) -> None:
        """Give a byte vector back."""
        self._free[module.__name__, scratch.size].append(scratch)

    def clear(self) -> None:
        """Let all memory go."""
        self._free.clear()


class KnownCalls(dict[Any, tuple[Kept | None, Any]]):
    """How repeated calls are served, by what they are recognised by: a plan, or MPI's own method."""

    def keep(self, key: Any, plan: Kept | None, native: Callable[..., object] | None = None) -> None:
        """Let later calls with this key be served so; the oldest makes room, its plan is freed."""
        self[key] = plan, native
        while len(self) > 1 and self._too_much():
            freed = self.pop(next(iter(self)))[0]
            if freed is not None:
                freed.Free()

    def _too_much(self) -> bool:
        plans = [plan for plan, _ in self.values() if plan is not None]
        return (
            len(self) > KNOWN_CALLS
            or sum(plan.scratch for plan in plans) > KEPT_BYTES
            or sum(plan.requests for plan in plans) > KEPT_REQUESTS
        )
