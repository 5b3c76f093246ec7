"""What codes lose of the vectors that a rank sends: error feedback."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy

from ..codes import NAMES
from ..schedule import bounds
from ..support.arrays import Array
from .compression import Compression

#: elements of a piece, whole groups: what is computed of it stays in the cache
_PIECE = 1 << 15
#: the kind of no codes: of what a rank sums itself
OWN = len(NAMES)


class Feeding(Protocol):
    """The computation, for contiguous float32 arrays on the host. kind: of the codes, or `OWN`."""

    def feed(
        self, kind: int, vector: int, before: int, after: int, count: int, factor: float, /
    ) -> None:
        """See `CodingLoss.feed`; arrays are addresses."""

    def feed_sums(self, kind: int, sums: int, after: int, count: int, factor: float, /) -> None:
        """See `CodingLoss.feed_sums`."""


class CodingLoss:
    """Adds what codes lost of a rank's vectors to the next ones, and notes what they lose then.

    Vectors are cut into equal shards, each of which one rank sums. Codes are made here as the
    schedule makes them, of the same groups of elements: groups begin anew with each shard. The
    shard that a rank sums itself it never sends, and loses nothing of it; there it keeps what is
    lost of the sum, where that is sent in codes, too.

    What was lost is in float32, in units of the vectors over `scale`. It stays finite, as it is
    added to all later vectors: of vectors that are not what was lost before is kept, and of sums
    that are not nothing.

    Algorithms: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019.

    Parameters
    ----------
    compression : Compression
        The codes.
    rank : int
        Whose vectors they are.
    largest : int
        Elements of the longest vector.
    module : module
        NumPy or CuPy.
    compiled : Feeding, optional
        The extension, which computes the same bits where it can.
    """

    def __init__(
        self,
        compression: Compression,
        rank: int,
        largest: int,
        module: ModuleType = numpy,
        compiled: Feeding | None = None,
    ) -> None:
        self.compression = compression
        self._kind = NAMES.index(compression.name)
        self._rank = rank
        self._module: Any = module
        self._compiled = compiled
        piece = min(largest, _PIECE) if module is numpy else largest
        # of one piece: what is wanted, what the others get, and its codes
        self._wanted: Array = self._module.zeros(piece, "float32")
        self._sent: Array = self._module.zeros(piece, "float32")
        codes = compression.groups(piece) * compression.nbytes
        self._codes: Array = self._module.zeros(codes, "uint8")

    @property
    def nbytes(self) -> int:
        """Bytes that it computes in."""
        return sum(array.nbytes for array in (self._wanted, self._sent, self._codes))

    def feed(
        self, vector: Array, before: Array, after: Array, shards: int, scale: float = 1.0
    ) -> None:
        """Add what was lost `before` to a vector that is about to be sent.

        after: is written, what will be lost of it; may be `before`.
        """
        compiled = self._compiled_for(vector)
        for owner, (first, last) in enumerate(pairwise(bounds(len(vector), shards))):
            part = slice(first, last)
            is_own = owner == self._rank
            if compiled is None:
                self._feed(vector[part], before[part], after[part], is_own, scale)
                continue
            compiled.feed(
                OWN if is_own else self._kind,
                vector[part].ctypes.data,
                before[part].ctypes.data,
                after[part].ctypes.data,
                last - first,
                scale,
            )

    def feed_sums(self, sums: Array, after: Array, scale: float = 1.0) -> None:
        """Add to `after` what will be lost of the sums of this rank's shard, about to be sent."""
        compiled = self._compiled_for(sums)
        if compiled is None:
            self._feed_sums(sums, after, scale)
        else:
            compiled.feed_sums(self._kind, sums.ctypes.data, after.ctypes.data, len(sums), scale)

    def _compiled_for(self, vector: Array) -> Feeding | None:
        """The extension, where it can compute with this vector."""
        is_float32 = self._module is numpy and vector.dtype == numpy.float32
        return self._compiled if is_float32 else None

    def _feed(self, vector: Array, before: Array, after: Array, is_own: bool, scale: float) -> None:
        """Feed one shard."""
        factor = numpy.float32(scale)
        with numpy.errstate(all="ignore"):  # a gradient that is not finite is found later
            for start in range(0, len(vector), len(self._wanted)):
                piece = slice(start, min(start + len(self._wanted), len(vector)))
                wanted = self._wanted[: piece.stop - start]
                sent = self._sent[: piece.stop - start]
                self._module.multiply(before[piece], factor, out=wanted)
                wanted += vector[piece]
                vector[piece] = wanted
                sent[...] = vector[piece]
                if not is_own:
                    self.compression.quantise(sent, self._codes, self._module)
                wanted -= sent
                wanted /= factor
                is_known = self._module.isfinite(wanted)
                after[piece] = self._module.where(is_known, wanted, before[piece])

    def _feed_sums(self, sums: Array, after: Array, scale: float) -> None:
        factor = numpy.float32(scale)
        with numpy.errstate(all="ignore"):
            for start in range(0, len(sums), len(self._wanted)):
                part = sums[start : start + len(self._wanted)]
                wanted = self._wanted[: len(part)]
                sent = self._sent[: len(part)]
                wanted[...] = part
                sent[...] = wanted
                self.compression.quantise(sent, self._codes, self._module)
                wanted -= sent
                wanted /= factor
                wanted[~self._module.isfinite(wanted)] = 0
                after[start : start + len(part)] += wanted
