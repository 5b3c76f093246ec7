"""Small calls that MPI served: the next of the same kind go to MPI without being looked at."""

from array import array
from collections.abc import Callable
from mmap import mmap
from typing import Any

import numpy as np
from mpi4py import MPI

from ..failure import Recorder, mark_of

IsSmall = Callable[[Any, Any, Any], bool]
_ndarray = np.ndarray
_IN_PLACE = MPI.IN_PLACE
_address = MPI.Get_address
#: classes of host memory
_HOST = {np.ndarray, bytearray, memoryview, mmap, array, MPI.buffer}
#: of these, the classes that own their memory; arrays may own it, too
_OWNERS: set[Any] = {bytearray, mmap}


class _Known(dict[Any, Any]):
    """Nested dictionaries: a missing key gives an empty dictionary, which is not stored."""

    def __missing__(self, key: object) -> "_Known":
        return _NOTHING


_NOTHING = _Known()


class SmallCalls:
    """Small calls by method, by op or root, and by their argument of the collective's full size.

    Of an array: {type: {bytes: mark}}. Of a list, or of bytes alone: {class of its buffer: {type:
    {count: (bytes that it needs, mark)}}}, with -bytes of the whole buffer for a count that is left
    out, and None for a type. MPI's own types are known by id: their objects live as long as mpi4py.
    mark: of the call, the same on all ranks.

    A call is added once it was parsed, compared with those of other ranks, and served by MPI.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: by method, the bytes from which on calls are looked at each time
        self.limits: dict[str, float] = {}
        self._known: dict[str, _Known] = {}
        self._tests: dict[str, tuple[IsSmall, Callable[[], None]]] = {}

    def note(self, text: str) -> None:
        """One more call went to MPI."""
        self._recorder.unseen.append(mark_of(text))
        if len(self._recorder.unseen) >= self._recorder.room[0]:
            self._recorder.enter_unseen()

    def withdraw(self) -> None:
        """The last call did not go to MPI, which refused it."""
        if self._recorder.unseen:
            self._recorder.unseen.pop()

    def of(self, method: str) -> _Known:
        """{op's handle or root: arguments} of a method, as it grows."""
        return self._known.setdefault(method, _Known())

    def add(self, method: str, what: int | None, said: Any, nbytes: int, text: str) -> None:
        """Let such calls go to MPI at once.

        said: the argument. nbytes: the bytes that it needs. text: the call in words.
        """
        known = self.of(method).setdefault(what, _Known())
        if said.__class__ is _ndarray:
            known.setdefault(said.dtype, _Known())[said.nbytes] = mark_of(text)
        elif (told := _told(said)) is not None:
            buffer, count, datatype = told
            plain = count.__class__ is int and buffer.__class__ in _HOST
            own = datatype is None or isinstance(datatype, MPI.Datatype) and any(
                datatype is value for value in vars(MPI).values()
            )
            if plain and own:
                types = known.setdefault(buffer.__class__, _Known())
                types.setdefault(id(datatype), _Known())[count] = nbytes, mark_of(text)

    def test(self, method: str, kind: Any, share: int) -> IsSmall:
        """A function is_small(vector, other, what): whether a call goes to MPI unseen.

        vector: the argument of the collective's full size. other: the other buffer, `share` times
        as small; 0: MPI itself compares them. what: the op or the root, of class `kind`.
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
    """Buffer, count and datatype of a list, or of bytes alone; None where it has another form."""
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
    """See `SmallCalls.test`; and a function that forgets the last call.

    recorder: where calls are noted.

    Each look-up costs a tenth of the call, so the last call is kept in local variables: most calls
    are like the last one. Their names begin with `array_` for arrays, `list_` for lists.
    """
    is_op = kind is MPI.Op
    array_what = array_nbytes = array_dtype = None
    list_what = list_class = list_count = list_datatype = None
    needed = 0
    array_mark = list_mark = mark_of("")
    unseen, passed = recorder.unseen, recorder.passed
    room, make_room = recorder.room, recorder.make_room
    note = unseen.append

    def forget() -> None:
        nonlocal array_what, list_what
        array_what = list_what = known  # no call has that as root or op

    def is_small(vector: Any, other: Any, what: Any) -> bool:
        nonlocal array_what, array_nbytes, array_dtype, array_mark
        nonlocal list_what, list_class, list_count, list_datatype, needed, list_mark
        if vector.__class__ is _ndarray:
            if (
                what is not array_what
                or vector.nbytes != array_nbytes
                or vector.dtype is not array_dtype
            ):
                if what.__class__ is not kind:
                    return False
                marks = known[what.handle if is_op else what][vector.dtype]
                if vector.nbytes not in marks:
                    return False
                array_what, array_nbytes, array_dtype = what, vector.nbytes, vector.dtype
                array_mark = marks[array_nbytes]
            if (
                other is _IN_PLACE
                or other is None
                or other.__class__ is _ndarray
                and other is not vector
                and (other.dtype is array_dtype or not is_op)
                and (not share or other.nbytes * share == vector.nbytes)
                and (vector.base is None and other.base is None or _disjoint(vector, other))
            ):
                note(array_mark)
                return len(unseen) + len(passed) < room[0] or make_room()
            return False
        if vector.__class__ is not list and vector.__class__ not in _OWNERS:
            return False
        told = vector if vector.__class__ is list and len(vector) == 3 else _told(vector)
        if told is None:
            return False
        buffer, count, datatype = told
        if count.__class__ is not int:
            return False
        if (
            count != list_count
            or datatype is not list_datatype
            or what is not list_what
            or buffer.__class__ is not list_class
        ):
            if what.__class__ is not kind:
                return False
            counts = known[what.handle if is_op else what][buffer.__class__][id(datatype)]
            if count not in counts:
                return False
            list_what, list_class = what, buffer.__class__
            list_count, list_datatype = count, datatype
            needed, list_mark = counts[count]
        if _room(buffer) < needed:  # mpi4py does not look
            return False
        if other is _IN_PLACE or other is None or _apart(told, other, share, needed):
            note(list_mark)
            return len(unseen) + len(passed) < room[0] or make_room()
        return False

    forget()
    return is_small, forget


def _apart(told: Any, message: Any, share: int, needed: int) -> bool:
    """Whether the other argument has as much memory as it must, none of it shared with the first.

    needed: bytes of the first.
    """
    if (other := _told(message)) is None:
        return False
    buffer, count, datatype = told
    memory, other_count, other_datatype = other
    if share:
        if other_datatype is not datatype:
            return False
        # a negative count is that of the bytes of a whole buffer, `share` times as large here
        if count != (other_count if count > 0 else other_count * share):
            return False
    if memory is buffer or _room(memory) < needed // (share or 1):
        return False
    if buffer.__class__ is _ndarray is memory.__class__:
        return buffer.base is None and memory.base is None or _disjoint(buffer, memory)
    return _owns(buffer) and _owns(memory)


def _room(buffer: Any) -> int:
    """Bytes of a buffer."""
    kind = buffer.__class__
    if kind is _ndarray or kind not in _OWNERS and kind is not array:
        nbytes: int = buffer.nbytes
        return nbytes
    return len(buffer) * (buffer.itemsize if kind is array else 1)


def _disjoint(one: Any, other: Any) -> bool:
    """Whether two arrays without gaps share no memory."""
    if not (one.flags.forc and other.flags.forc):
        return False
    here, there = _address(one), _address(other)
    return bool(here + one.nbytes <= there or there + other.nbytes <= here)


def _owns(buffer: Any) -> bool:
    """Two that own their memory cannot overlap."""
    return buffer.__class__ in _OWNERS or buffer.__class__ is _ndarray and buffer.base is None
