"""Sums of floats in fixed point: integers, whose sum is the same in any order and partition.

A vector is multiplied by a power of two, on which the ranks agree, and rounded to integers of
`FRACTION` bits: one word of 64 bits for each number of up to 32 bits, two for a float64. The
rounding of a contribution thus depends on the largest number of all contributions only: neither on
their number nor on the rank that has it. `HEADROOM` bits are left for their sum, which is exact; it
is rounded once, at the end.

A contribution with nan or an infinity makes the whole sum (of its part of the vector) nan. A sum
beyond the range of its type is an infinity.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import frexp, inf, isfinite
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError
from ..gpu import computes
from .device import reading, writing
from .operand import Operand, bytes_of, room_of

#: bits of the largest number of a contribution
FRACTION = 50
#: bits for the sum of many contributions; with FRACTION and a sign they are 63
HEADROOM = 12
#: the largest number of contributions of a sum
MOST = 1 << HEADROOM
#: the least exponent of a scale, far below the precision that float64 has left there
_LEAST = -900
#: stands for an exponent where there is nan or an infinity
_NOT_FINITE = 1 << 16
#: adding it rounds a float64 below 2**51 to an integer, which then lies in its lowest bits
_ROUNDING = 1.5 * 2.0**52
_ROUNDING_BITS = int(np.float64(_ROUNDING).view(np.int64))
_WORD = np.dtype(np.int64)
#: elements of a piece: intermediate results stay in the cache
_PIECE = 1 << 14
_DEVICE_PIECE = 1 << 22

#: by name of a dtype, the real numbers in an element
TYPES = {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 1, "complex64": 2, "complex128": 2}


class Contributions:
    """Several contributions of one rank to a sum of a reproducible communicator.

    They replace the send buffer. The result is the same, bit for bit, for every distribution of the
    contributions over ranks.

    Parameters
    ----------
    array : array, shape (contributions, …)
        A NumPy or CuPy array of contributions, each contiguous. Their number may be 0, and differ
        between ranks; each of p ranks may have up to 4096 / p of them.
    edges : sequence of int, optional
        The first element of each part of the vector, and the length of the vector; the same on all
        ranks. Each part has its own scale, so the result of a part does not depend on the other
        parts. By default the vector is one part.

    Raises
    ------
    ArgumentError
        Of the call: the communicator is not reproducible, the op is not MPI.SUM, or edges are bad.
    BufferError
        Of the call: a contribution is not contiguous, or has another size than the result.

    Examples
    --------
    >>> comm = mpicoll.Communicator(MPI.COMM_WORLD, reproducible=True)
    >>> comm.Allreduce(mpicoll.Contributions(gradients_of_micro_batches), gradient)
    """

    def __init__(self, array: Any, edges: Sequence[int] | None = None) -> None:
        self.array = array
        self.edges = edges


def cannot_be_fixed(operand: Operand) -> str:
    """Why an operand cannot be summed in fixed point; empty where it can."""
    dtype = operand.dtype
    if dtype is None or dtype.name not in TYPES:
        kind = "a derived datatype" if dtype is None else dtype
        return f"{kind} cannot; {', '.join(TYPES)} and integers can"
    if operand.packs_on is not np and not computes(dtype):
        return f"this version of CuPy does not compute with {dtype}"
    return ""


def _edges(edges: Any, length: int) -> list[int]:
    """The edges of the parts of a vector, checked."""
    expected = f"ascending numbers from 0 to {length}, the length of the vector"
    try:
        found = [index(edge) for edge in edges]
    except TypeError:
        raise ArgumentError(f"edges: expected {expected}, got {edges!r}") from None
    if [*found[:1], *found[-1:]] != [0, length] or found != sorted(found):
        raise ArgumentError(f"edges: expected {expected}, got {found}")
    return found


class FixedPoint:
    """The conversion of the floats of one call to integers and back."""

    def __init__(self, source: Operand, edges: Sequence[int] | None) -> None:
        assert source.dtype is not None
        numbers = TYPES[source.dtype.name]
        length = source.nbytes // source.dtype.itemsize
        edges = [0, length] if edges is None else _edges(edges, length)

        #: of the caller's elements
        self.dtype = source.dtype
        #: of their real numbers
        self._real = np.empty(0, self.dtype).real.dtype
        #: 64-bit words of a real number
        self._each = 2 if self._real.itemsize == 8 else 1
        #: 64-bit words of an element
        self.words = numbers * self._each
        #: the parts of the vector, in real numbers
        self.edges = [numbers * edge for edge in edges]
        self._source = source
        self._module = source.packs_on
        #: whether a later call on the same memory is the same
        self.repeatable = not source.packed
        rows = source.rows
        if rows is None and not source.packed:
            rows = [bytes_of(source)]
        #: the contributions as vectors of real numbers; None: packed at each call
        self._rows = None if rows is None else [row.view(self._real) for row in rows]
        #: maxima over ranks: the number of contributions, and each part's largest exponent
        self.agreed = np.empty(len(self.edges), np.int64)

    # What ranks agree on.

    def measure(self) -> None:
        """Write this rank's number of contributions and exponents into `agreed`."""
        rows = self._contributions()
        self.agreed[0] = len(rows)
        self.agreed[1:] = _LEAST
        with reading(self._source):
            for part, (low, high) in enumerate(pairwise(self.edges), 1):
                bits = 0
                if high > low:
                    bits = max((_largest(row[low:high]) for row in rows), default=0)
                self.agreed[part] = _exponent(bits, self._real)

    def _contributions(self) -> list[Any]:
        """The contributions as vectors of real numbers; a contribution with gaps is copied."""
        if self._rows is not None:
            return self._rows
        room = room_of(self._source)
        self._source.pack(room)
        return [room.view(self._real)]

    def check(self, size: int) -> None:
        """Raise ArgumentError where ranks may have more than `MOST` contributions."""
        most = int(self.agreed[0])
        if most * size > MOST:
            room = f"{MOST} contributions, {MOST // size} of each of {size} ranks"
            raise ArgumentError(
                f"a reproducible sum has room for {room}; a rank has {most}: "
                "sum some of them before"
            )

    # Conversion.

    def to_words(self, operands: Sequence[Operand], nbytes: int) -> Operand:
        """The operand of the words of `nbytes` bytes of the vector.

        operands: the caller's; the words lie in the same kind of memory as the first.
        """
        buffers = tuple(operand.buffer for operand in operands)
        words = Operand(buffers, MPI.INT64_T, _WORD, self.bytes_of_words(nbytes))
        words.lie_with(operands[0])
        words.pack = self.encode
        return words

    def from_words(
        self, operands: Sequence[Operand], target: Operand, nbytes: int, first: int = 0
    ) -> Operand:
        """The operand of words to decode into `target`: bytes `first` to `first + nbytes`."""
        words = self.to_words(operands, nbytes)
        words.pack = _leave
        words.unpack = partial(self.decode, target, first // self.dtype.itemsize)
        return words

    def bytes_of_words(self, nbytes: int) -> int:
        """Bytes of the words of `nbytes` bytes of the vector."""
        return nbytes // self.dtype.itemsize * self.words * _WORD.itemsize

    def encode(self, work: Any) -> None:
        """Write the sum of this rank's contributions, as words."""
        each = self._each
        with reading(self._source):
            rows = self._contributions()
            words = work.view(_WORD)
            if not rows:
                words[...] = 0
            for (low, high), exponent in zip(pairwise(self.edges), self.agreed[1:].tolist()):
                scale = 2.0 ** (FRACTION - exponent) if exponent < _NOT_FINITE else 0.0
                for start, end in self._pieces(low, high):
                    piece = words[start * each : end * each]
                    for number, row in enumerate(rows):
                        self._add(row[start:end], scale, piece, number == 0)

    def _add(self, row: Any, scale: float, words: Any, first: bool) -> None:
        """Add the integers of a piece to the words; first: write them."""
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
            wide -= rounded  # exact
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
        """Write words as floats into an operand that begins with element `base` of the vector."""
        with writing(target):
            self._decode(target, base, work)

    def _decode(self, target: Operand, base: int, work: Any) -> None:
        each = self._each
        words = work.view(_WORD)
        first = base * self.words // each  # in real numbers, as `edges`
        room = room_of(target)
        out = room.view(self._real)[: len(words) // each]
        if target.packed and out.nbytes < room.nbytes:  # unpacking keeps the rest of the target
            target.pack(room)
        for (low, high), exponent in zip(pairwise(self.edges), self.agreed[1:].tolist()):
            factor = 2.0 ** (exponent - FRACTION) if exponent < _NOT_FINITE else inf - inf
            for start, end in self._pieces(max(low - first, 0), min(high - first, len(out))):
                wide = self._floats(words[start * each : end * each])
                wide *= factor
                if self._real.itemsize == 2:  # not every such type is made of a float64 at once
                    wide = _to_odd(wide.view(_WORD), 29).view(np.float64).astype(np.float32)
                out[start:end] = wide
        if target.packed:
            target.unpack(room)

    def _floats(self, words: Any) -> Any:
        """The sums as float64, in units of the scale: of two words, rounded to the nearest.

        Those of one word are rounded to odd, so that a type of less bits can be made of them in one
        rounding.
        """
        module = self._module
        if self._each == 1:
            is_exact = _has_53_bits(module, words)
            return module.where(is_exact, words, _to_odd(words, 11)).astype(np.float64)
        pairs = words.reshape(-1, 2)
        high, low = pairs[:, 0], pairs[:, 1]
        carry = (low + (1 << FRACTION - 1)) >> FRACTION
        high = high + carry
        low = low - (carry << FRACTION)
        # The last addition alone may round. Beside 53 bits or more, of a fraction only the sign
        # matters: a quarter with that sign leaves room for the lower bits of `high`.
        is_exact = _has_53_bits(module, high)
        rest = module.where(is_exact, low * 2.0**-FRACTION, module.sign(low) * 0.25)
        top = module.where(is_exact, high, high >> 22 << 22)
        rest += high - top
        rest += top
        return rest

    def _pieces(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        step = _PIECE if self._module is np else _DEVICE_PIECE
        for start in range(low, high, step):
            yield start, min(start + step, high)


def _leave(work: Any) -> None:
    """Pack nothing: the operand only receives."""


def _has_53_bits(module: Any, words: Any) -> Any:
    """Where integers are exact as float64."""
    return module.abs(words) < 1 << 53


def _to_odd(words: Any, bits: int) -> Any:
    """Integers without the lowest bits; where these were not 0, the last one that is left is 1.

    Of floats that are seen as integers, too: the sign is another bit.

    Algorithm: Boldo and Melquiond, IEEE Transactions on Computers 57, 2008.
    """
    odd = words >> bits
    odd |= (words & (1 << bits) - 1) != 0
    odd <<= bits
    return odd


def _largest(row: Any) -> int:
    """The bits of the largest magnitude: floats without sign have the order of their bits.

    nan is the largest.
    """
    size = row.dtype.itemsize
    positive = int(row.view(f"i{size}").max())
    any_sign = int(row.view(f"u{size}").max())
    sign = 1 << 8 * size - 1
    return max(positive, any_sign - sign if any_sign & sign else 0)


def _exponent(bits: int, dtype: "np.dtype[Any]") -> int:
    """The least e with |x| < 2**e for the float of these bits, at least `_LEAST`."""
    value = float(np.array(bits, f"u{dtype.itemsize}").view(dtype))
    if not isfinite(value):
        return _NOT_FINITE
    return max(_LEAST, frexp(value)[1]) if value else _LEAST
