"""Small calls that MPI served: the next of the same kind go to MPI without being looked at."""

from array import array
from collections.abc import Callable
from mmap import mmap
from typing import Any

import numpy as np
from mpi4py import MPI

from .recorder import Recorder, mark_of

IsSmall = Callable[[Any, Any, Any], bool]
_ndarray, _IN_PLACE, _address = np.ndarray, MPI.IN_PLACE, MPI.Get_address
#: memory of the host, by the class of who has it
_HOST = {np.ndarray, bytearray, memoryview, mmap, array, MPI.buffer}
#: of these, the ones that own it; arrays may do so, too
_OWNERS: set[Any] = {bytearray, mmap}


class _Known(dict[Any, Any]):
    """A dictionary that has nothing for what it does not know, and does not grow by being asked."""

    def __missing__(self, key: object) -> "_Known":
        return _NOTHING


_NOTHING = _Known()


class SmallCalls:
    """By method, op or root, and what the argument says that is as large as the collective's vector.

    Of an array: {type: {bytes: mark}}. Of a list, or of bytes alone: {class of its buffer: {type:
    {count: (bytes that it needs, mark)}}}, where -bytes of all the buffer stand for a count that is
    not given, and None for a type. MPI's own types are known by id: their objects live as long as
    mpi4py. mark: what the call is, the same on all ranks.

    A call comes here once it was understood, compared with those of other ranks, and found to be MPI's. limits: by
    method, the bytes from which on calls are looked at each time.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.limits: dict[str, float] = {}
        self._known: dict[str, _Known] = {}
        self._tests: dict[str, tuple[IsSmall, Callable[[], None]]] = {}

    def note(self, text: str) -> None:
        """One more went to MPI."""
        self._recorder.unseen.append(mark_of(text))
        if len(self._recorder.unseen) >= self._recorder.room[0]:
            self._recorder.enter_unseen()

    def withdraw(self) -> None:
        """The last one did not: MPI has refused it."""
        if self._recorder.unseen:
            self._recorder.unseen.pop()

    def of(self, method: str) -> _Known:
        """{op's handle or root: what the argument said} of a method, as it grows."""
        return self._known.setdefault(method, _Known())

    def add(self, method: str, what: int | None, said: Any, nbytes: int, text: str) -> None:
        """Let such calls go to MPI at once. said: the argument; nbytes: that it needs; text: what such a call is."""
        known = self.of(method).setdefault(what, _Known())
        if said.__class__ is _ndarray:
            known.setdefault(said.dtype, _Known())[said.nbytes] = mark_of(text)
        elif (told := _told(said)) is not None:
            buffer, count, datatype = told
            plain = count.__class__ is int and buffer.__class__ in _HOST
            own = isinstance(datatype, MPI.Datatype) and any(datatype is one for one in vars(MPI).values())
            if plain and (datatype is None or own):
                types = known.setdefault(buffer.__class__, _Known())
                types.setdefault(id(datatype), _Known())[count] = nbytes, mark_of(text)

    def test(self, method: str, kind: Any, share: int) -> IsSmall:
        """A function is_small(vector, other, what): whether a call goes to MPI without being looked at.

        vector: the argument that is as large as the collective's vector. other: the other buffer, `share` times as small;
        0: MPI itself compares them. what: the op or the root, of this kind.
        """
        if method not in self._tests:
            self._tests[method] = _small_calls(self.of(method), kind, share, self._recorder)
        return self._tests[method][0]

    def clear(self) -> None:
        """Look at all calls again."""
        for known in self._known.values():
            known.clear()
        for _, forget in self._tests.values():
            forget()


def _told(message: Any) -> Any:
    """Buffer, count and datatype of a list, or of bytes alone; None where it says more, or in other words."""
    if message.__class__ in _OWNERS:
        return message, -len(message), None
    if message.__class__ is not list:
        return None
    if len(message) == 3:
        return message
    if len(message) == 2:
        buffer, datatype = message
        if buffer.__class__ is _ndarray:
            return buffer, -buffer.nbytes, datatype
        if buffer.__class__ in _OWNERS:
            return buffer, -len(buffer), datatype
    return None


def _small_calls(
    known: _Known, kind: Any, share: int, recorder: Recorder
) -> tuple[IsSmall, Callable[[], None]]:
    """See `SmallCalls.test`; and a function that has it forget what it said last.

    recorder: where calls are noted.

    Every test costs a tenth of the call, so what was known last is not looked up again: most calls are like the last one.
    """
    is_op = kind is MPI.Op
    whose = nbytes = dtype = whom = owner = number = element = None
    needed = 0
    array_mark = list_mark = mark_of("")
    unseen, room, make_room = recorder.unseen, recorder.room, recorder.make_room
    note = unseen.append

    def forget() -> None:
        nonlocal whose, whom
        whose = whom = known  # no call has that as root or op

    def is_small(vector: Any, other: Any, what: Any) -> bool:
        nonlocal whose, nbytes, dtype, whom, owner, number, element, needed, array_mark, list_mark
        if vector.__class__ is _ndarray:
            if what is not whose or vector.nbytes != nbytes or vector.dtype is not dtype:
                if what.__class__ is not kind:
                    return False
                marks = known[what.handle if is_op else what][vector.dtype]
                if vector.nbytes not in marks:
                    return False
                whose, nbytes, dtype = what, vector.nbytes, vector.dtype
                array_mark = marks[nbytes]
            if (
                other is _IN_PLACE
                or other is None
                or other.__class__ is _ndarray
                and other is not vector
                and (other.dtype is dtype or not is_op)
                and (not share or other.nbytes * share == vector.nbytes)
                and (vector.base is None and other.base is None or _disjoint(vector, other))
            ):
                note(array_mark)
                return len(unseen) < room[0] or make_room()
            return False
        if vector.__class__ is not list and vector.__class__ not in _OWNERS:
            return False
        if (told := vector if vector.__class__ is list and len(vector) == 3 else _told(vector)) is None:
            return False
        buffer, count, datatype = told
        if count.__class__ is not int:
            return False
        if count != number or datatype is not element or what is not whom or buffer.__class__ is not owner:
            if what.__class__ is not kind:
                return False
            counts = known[what.handle if is_op else what][buffer.__class__][id(datatype)]
            if count not in counts:
                return False
            whom, owner, number, element = what, buffer.__class__, count, datatype
            needed, list_mark = counts[count]
        if _room(buffer) < needed:  # mpi4py does not look
            return False
        if other is _IN_PLACE or other is None or _apart(told, other, share, needed):
            note(list_mark)
            return len(unseen) < room[0] or make_room()
        return False

    forget()
    return is_small, forget


def _apart(told: Any, message: Any, share: int, needed: int) -> bool:
    """Whether the other argument names as much memory as it has to, has it, and cannot share any with the first.

    needed: bytes of the first.
    """
    if (other := _told(message)) is None:
        return False
    (buffer, count, datatype), (memory, room, same) = told, other
    if share and (same is not datatype or (room != count if count > 0 else room * share != count)):
        return False
    if memory is buffer or _room(memory) < needed // (share or 1):
        return False
    if buffer.__class__ is _ndarray is memory.__class__:
        return buffer.base is None and memory.base is None or _disjoint(buffer, memory)
    return _owns(buffer) and _owns(memory)


def _room(buffer: Any) -> int:
    """Bytes of a buffer."""
    if buffer.__class__ is _ndarray or buffer.__class__ not in _OWNERS and buffer.__class__ is not array:
        nbytes: int = buffer.nbytes
        return nbytes
    return len(buffer) * (buffer.itemsize if buffer.__class__ is array else 1)


def _disjoint(one: Any, other: Any) -> bool:
    """Whether two arrays without gaps share no memory."""
    if not (one.flags.forc and other.flags.forc):
        return False
    here, there = _address(one), _address(other)
    return bool(here + one.nbytes <= there or there + other.nbytes <= here)


def _owns(buffer: Any) -> bool:
    """Two that own their memory cannot overlap."""
    return buffer.__class__ in _OWNERS or buffer.__class__ is _ndarray and buffer.base is None
