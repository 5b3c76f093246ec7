"""Repeated calls: what a communicator keeps to serve a call like one that was made before."""

from __future__ import annotations

from typing import Any

from ..binding import Places
from ..progress import WINDOW
from .operation import Operation

#: kinds of calls that are recognised, per communicator
KNOWN_CALLS = 128
#: scratch and requests that their operations may hold
KEPT_BYTES = 512 << 20
KEPT_REQUESTS = 1 << 16
#: scratch of the operations of one call
_SCRATCH_BYTES = 64 << 20
#: calls that are remembered as compared; then all are compared again
_COMPARED = 4096


#: all that the checks, the choice and the operation of a call depend on, except addresses
Shape = tuple[Any, ...]
#: by which a call is recognised: its shape, and (address, bytes) of each buffer in host memory
Key = tuple[Shape, Places]


def _kept_with(scratch: int) -> int:
    """How many operations of one call, each with so much scratch, are kept for as many buffers."""
    return max(2, _SCRATCH_BYTES // max(1, scratch))


class CachedCall:
    """How calls of one shape are served: by operations that are kept, or by MPI's own method."""

    def __init__(self, text: str, choice: Any) -> None:
        """choice: a `select.Choice`."""
        #: the call in words
        self.text = text
        self.choice = choice
        #: MPI's own method, where it serves the call with the user's arguments
        self.method: Any = None
        #: whether its arguments have lists, which the caller may use again: see `buffers.frozen`
        self.has_lists = False
        #: whether its messages say which call they belong to, so that ranks need not compare it
        self.is_named = False
        #: whether ranks that compare all calls compare one of so many of these
        self.is_sampled = False
        #: by their memory, operations that no call is using
        self.idle: dict[Places, Operation] = {}

    def take(self, key: Key | None) -> Operation | None:
        """An operation for this call, which no other call is using; None where there is none."""
        if key is None:
            return None
        _, memory = key
        operation = self.idle.pop(memory, None)
        place = memory
        if operation is None and self.idle:
            try:
                place, operation = self.idle.popitem()
            except KeyError:  # another thread was faster
                return None
        if operation is None:
            return None
        if operation.is_busy or (place != memory and not operation.movable):
            self.idle[place] = operation
            return None
        if place != memory:
            operation.move(memory)
        return operation

    def give_back(self, operation: Operation, key: Key | None) -> None:
        """A call has ended; None: no call will ask for its operation again."""
        if key is None or not operation.is_kept or key[1] in self.idle:
            operation.Free()
            return
        _, memory = key
        if operation.memory != memory:  # it is new
            operation.lies_in(memory)
        self.idle[memory] = operation
        most = WINDOW if operation.movable else min(KNOWN_CALLS, _kept_with(operation.scratch))
        if len(self.idle) > most:
            self.idle.pop(next(iter(self.idle))).Free()

    def free(self) -> None:
        """Free the operations that lie idle."""
        while self.idle:
            self.idle.popitem()[1].Free()


class CallCache(dict[Shape, CachedCall]):
    """{shape: entry} of repeated calls, and all else that spares a call a part of its way.

    It may differ between ranks: each keeps what it meets, and forgets what takes too much room.
    Only `must_compare` answers alike on all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        #: texts of the calls that were compared with those of other ranks; and those of them that
        #: the extension would execute on all ranks, and whose messages name them
        self._compared: set[str] = set()
        self.runs_in_c: set[str] = set()
        self.named: set[str] = set()

    def find(self, key: Key | None) -> CachedCall | None:
        """The entry of a call, if it is known."""
        return None if key is None else self.get(key[0])

    def keep(self, key: Key, entry: CachedCall) -> None:
        """Serve later calls of this shape so.

        The oldest entries make room, and their operations are freed.
        """
        self[key[0]] = entry
        while len(self) > 1 and self._too_much():
            self.pop(next(iter(self))).free()

    def must_compare(self, text: str, is_due: bool) -> bool:
        """Whether a call is to be compared; remembers that it was.

        is_due: it is, unless its messages name it.
        """
        if text in self._compared and (not is_due or text in self.named):
            return False
        if len(self._compared) >= _COMPARED:
            # with all that spares a call the comparison: other ranks may not be spared it
            self._compared.clear()
            self.runs_in_c.clear()
            self.named.clear()
            self.free()
        self._compared.add(text)
        return True

    def free(self) -> None:
        """Look at all calls again; the operations that are kept are freed."""
        for entry in self.values():
            entry.free()
        super().clear()

    def _too_much(self) -> bool:
        scratch = requests = 0
        for entry in self.values():
            for operation in list(entry.idle.values()):  # which calls in other threads change
                scratch += operation.scratch
                requests += operation.requests
        return len(self) > KNOWN_CALLS or scratch > KEPT_BYTES or requests > KEPT_REQUESTS
