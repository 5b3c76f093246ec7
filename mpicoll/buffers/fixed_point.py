"""Sums of floats in fixed point: whole numbers, whose sum is the same in whatever order and in however many parts it is made.

A vector is multiplied by a power of two, which ranks agree on, and rounded to whole numbers of `FRACTION` bits: one word of
64 bits for each number of up to 32 bits, two for a float64. The rounding of a contribution thus depends on the largest
number of all contributions and on nothing else: not on how many there are, nor on who has which. `HEADROOM` bits are left for
their sum, which is exact; it is rounded once, at the end.

Where a contribution has nan or an infinity, all of the sum (of its part of the vector) is nan. A sum beyond the range of
its type is an infinity, as ever.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from math import frexp, inf
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError
from .device import at_device, computes
from .memory import address, at
from .operand import Operand
from .streams import current_streams, putting

#: bits of the largest number, and those for the sum of many; with a sign they are 63
FRACTION, HEADROOM = 50, 12
#: how many contributions a sum may have
MOST = 1 << HEADROOM
#: the exponent of the least scale: numbers of 2**-1000 and less are nothing beside what float64 can hold
_LEAST = -900
#: stands for an exponent where there is nan or an infinity
_NOT_FINITE = 1 << 16
#: adding it rounds a float64 below 2**51 to a whole number, which then lies in its lowest bits
_ROUNDING = 1.5 * 2.0**52
_ROUNDING_BITS = int(np.float64(_ROUNDING).view(np.int64))
_WORD = np.dtype(np.int64)
#: elements at a time: what is computed in between stays in the cache
_PIECE, _DEVICE_PIECE = 1 << 14, 1 << 22

#: by name, the real numbers that types consist of, and how many
TYPES = {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 1, "complex64": 2, "complex128": 2}


class Contributions:
    """Several contributions of one rank to a sum of a reproducible communicator, in place of the send buffer.

    The result is the same, bit for bit, as if each were that of a rank of its own, whichever rank has it.

    Parameters
    ----------
    array : array, shape (contributions, …)
        NumPy's or CuPy's, one contribution after the other, each of them contiguous. The number may be 0, and other ranks
        may have other numbers; all ranks together may have 4,096, each of p ranks up to 4096 / p of them.
    edges : sequence of int, optional
        Where parts of the vector begin, and its length at the end, in elements and the same on all ranks: each part has a
        scale of its own, so that what is in one does not depend on what is in others. By default it is one part.

    Raises
    ------
    ArgumentError
        Of the call: the communicator is not reproducible, or the op is not MPI.SUM; edges do not fit the vector.
    BufferError
        Of the call: a contribution is not contiguous, or has another size than the result.

    Examples
    --------
    >>> comm = mpicoll.Communicator(MPI.COMM_WORLD, reproducible=True)
    >>> comm.Allreduce(mpicoll.Contributions(gradients_of_micro_batches), gradient)
    """

    def __init__(self, array: Any, edges: Sequence[int] | None = None) -> None:
        self.array, self.edges = array, edges


def cannot_be_fixed(one: Operand) -> str:
    """Why the numbers of an operand cannot be summed in fixed point; empty where they can."""
    if one.dtype is None or one.dtype.name not in TYPES:
        return f"{'a derived datatype' if one.dtype is None else one.dtype} cannot; {', '.join(TYPES)} and integers can"
    if one.packs_on is not np and not computes(one.dtype):
        return f"this version of CuPy does not compute with {one.dtype}"
    return ""


class FixedPoint:
    """How the floats of one call become whole numbers and back.

    dtype: of the caller's elements. words: 64-bit words of each element. agreed: what ranks bring together, the largest of
    each: their number of contributions, and for each part of the vector the exponent of its largest number.
    repeatable: whether a later call on the same memory is the same.
    """

    def __init__(self, source: Operand, edges: Sequence[int] | None) -> None:
        assert source.dtype is not None
        self.dtype, numbers = source.dtype, TYPES[source.dtype.name]
        self._real = np.empty(0, self.dtype).real.dtype
        self._each = 2 if self._real.itemsize == 8 else 1
        self.words = numbers * self._each
        length = source.nbytes // self.dtype.itemsize
        edges = [0, length] if edges is None else list(edges)
        if edges[0] != 0 or edges[-1] != length or any(low > high for low, high in pairwise(edges)):
            raise ArgumentError(f"edges: expected ascending numbers from 0 to {length}, the length of the vector, got {edges}")
        self.edges = [numbers * edge for edge in edges]
        self._source, self._module = source, source.packs_on
        self.repeatable = not source.packed
        rows = source.rows if source.rows is not None else None if source.packed else [_by_address(source)]
        self._rows = None if rows is None else [row.view(self._real) for row in rows]
        self.agreed = np.empty(len(self.edges), np.int64)

    # What ranks agree on.

    def measure(self) -> None:
        """Say in `agreed` what there is on this rank."""
        rows = self._taken()
        self.agreed[0], self.agreed[1:] = len(rows), _LEAST
        with _fetching(self._source):
            for part, (low, high) in enumerate(pairwise(self.edges), 1):
                bits = max((_largest(row[low:high]) for row in rows), default=0) if high > low else 0
                self.agreed[part] = _exponent(bits, self._real)

    def _taken(self) -> list[Any]:
        """The contributions, each as one vector of real numbers; those that lie with gaps are copied."""
        if self._rows is not None:
            return self._rows
        room = self._module.empty(self._source.nbytes, np.uint8)
        self._source.pack(room)
        return [room.view(self._real)]

    def check(self, size: int) -> None:
        """Raise ArgumentError where ranks may have more contributions than the sum has room for."""
        most = int(self.agreed[0])
        if most * size > MOST:
            room = f"{MOST} contributions, {MOST // size} of each of {size} ranks"
            raise ArgumentError(f"a reproducible sum has room for {room}; a rank has {most}: sum some of them before")

    # There and back.

    def to_words(self, given: Sequence[Operand], nbytes: int) -> Operand:
        """The operand of the words of so many bytes of the vector. given: the caller's operands, the first like it."""
        like = given[0]
        words = Operand(tuple(one.buffer for one in given), MPI.INT64_T, _WORD, self.bytes_of_words(nbytes))
        words.device, words.caller_stream, words.packs_on = like.device, like.caller_stream, like.packs_on
        words.staged, words.mirror, words.pack = like.staged, like.mirror, self.encode
        return words

    def from_words(self, given: Sequence[Operand], target: Operand, nbytes: int, first: int = 0) -> Operand:
        """That of words which become so many bytes of the vector, from byte `first` on, in an operand of the caller's."""
        words = self.to_words(given, nbytes)
        words.pack, words.unpack = _leave, partial(self.decode, target, first // self.dtype.itemsize)
        return words

    def bytes_of_words(self, nbytes: int) -> int:
        """How many bytes stand for so many of the vector."""
        return nbytes // self.dtype.itemsize * self.words * _WORD.itemsize

    def encode(self, work: Any) -> None:
        """Write the sum of this rank's contributions, as words."""
        with _fetching(self._source):
            rows, words = self._taken(), work.view(_WORD)
            if not rows:
                words[...] = 0
            for (low, high), exponent in zip(pairwise(self.edges), self.agreed[1:].tolist()):
                scale = 2.0 ** (FRACTION - exponent) if exponent < _NOT_FINITE else 0.0
                for start, end in self._pieces(low, high):
                    for number, row in enumerate(rows):
                        self._add(row[start:end], scale, words[start * self._each : end * self._each], number == 0)

    def _add(self, row: Any, scale: float, words: Any, first: bool) -> None:
        """Add the whole numbers of a piece to the words, or write them there."""
        wide = row.astype(np.float64)
        wide *= scale
        if self._each == 1:
            wide += _ROUNDING
            whole = wide.view(_WORD)
            whole -= _ROUNDING_BITS
        else:
            whole = self._module.empty((len(wide), 2), _WORD)
            rounded = wide + _ROUNDING
            whole[:, 0] = rounded.view(_WORD)
            rounded -= _ROUNDING
            wide -= rounded  # what is left is exact
            wide *= 2.0**FRACTION
            wide += _ROUNDING
            whole[:, 1] = wide.view(_WORD)
            whole -= _ROUNDING_BITS
            whole = whole.reshape(-1)
        if first:
            words[...] = whole
        else:
            words += whole

    def decode(self, target: Operand, base: int, work: Any) -> None:
        """Write the floats that words stand for into an operand, whose first element is element `base` of the vector."""
        if target.packs_on is np:
            self._decode(target, base, work)
        else:
            with putting(target.device) as own:
                own.put.wait_event(own.fetch.record())
                self._decode(target, base, work)

    def _decode(self, target: Operand, base: int, work: Any) -> None:
        packed, words, base = target.packed, work.view(_WORD), base * self.words // self._each
        room = target.packs_on.empty(target.nbytes, np.uint8) if packed else _by_address(target)
        out = room.view(self._real)[: len(words) // self._each]
        if packed and out.nbytes < room.nbytes:  # the rest is left as it is
            target.pack(room)
        for (low, high), exponent in zip(pairwise(self.edges), self.agreed[1:].tolist()):
            low, high = max(low - base, 0), min(high - base, len(out))
            factor = 2.0 ** (exponent - FRACTION) if exponent < _NOT_FINITE else inf - inf
            for start, end in self._pieces(low, high):
                wide = self._floats(words[start * self._each : end * self._each])
                wide *= factor
                out[start:end] = wide if self._real.itemsize > 2 else wide.astype(np.float32)
        if packed:
            target.unpack(room)

    def _floats(self, words: Any) -> Any:
        """The sums as float64, in units of the scale: rounded twice at most, and the second time by next to nothing."""
        if self._each == 1:
            return words.astype(np.float64)
        pairs = words.reshape(-1, 2)
        high, low = pairs[:, 0], pairs[:, 1]
        carry = (low + (1 << FRACTION - 1)) >> FRACTION
        high, low = high + carry, low - (carry << FRACTION)
        top = (high + (1 << 30)) >> 31 << 31  # what is taken off has another 31 bits: nothing cancels
        rest = low * 2.0**-FRACTION
        rest += high - top
        rest += top
        return rest

    def _pieces(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        step = _PIECE if self._module is np else _DEVICE_PIECE
        for start in range(low, high, step):
            yield start, min(start + step, high)


def _leave(work: Any) -> None:
    """There is nothing to bring: it gets a result."""


def _by_address(one: Operand) -> Any:
    """The elements of an operand, which do not keep its memory alive."""
    place = at if one.packs_on is np else at_device
    return place(address(one.vector), one.nbytes, np.uint8)


def _fetching(one: Operand) -> AbstractContextManager[object]:
    """Where an operand is read: on a device, in our stream, which follows the caller's."""
    return nullcontext() if one.packs_on is np else current_streams().fetch


def _largest(row: Any) -> int:
    """The bits of the largest magnitude; floats without their sign are in the order of their bits, nan the last."""
    size = row.dtype.itemsize
    positive, any_sign = int(row.view(f"i{size}").max()), int(row.view(f"u{size}").max())
    sign = 1 << 8 * size - 1
    return max(positive, any_sign - sign if any_sign & sign else 0)


def _exponent(bits: int, dtype: "np.dtype[Any]") -> int:
    """The least e with |x| < 2**e for the float of these bits, but for numbers that are too small."""
    value = float(np.array(bits, f"u{dtype.itemsize}").view(dtype))
    return _NOT_FINITE if value - value != 0 else max(_LEAST, frexp(value)[1]) if value else _LEAST
