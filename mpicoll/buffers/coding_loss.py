"""What codes lose of the vectors that a rank sends: error feedback."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy

from ..schedule import bounds
from ..support.arrays import Array
from .compression import Compression

#: elements of a piece, whole groups: what is computed of it stays in the cache
_PIECE = 1 << 15


class CodingLoss:
    """Adds what codes lost of a rank's vectors to the next ones, and notes what they lose then.

    Vectors are cut into equal shards, each of which one rank sums. Codes are made here as the
    schedule makes them, of the same groups of elements: groups begin anew with each shard. The
    shard that a rank sums itself it never sends, and loses nothing of it; there it keeps what is
    lost of the sum, where that is sent in codes, too.

    What was lost is in float32, in units of the vectors over `scale`.

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
    """

    def __init__(
        self, compression: Compression, rank: int, largest: int, module: ModuleType = numpy
    ) -> None:
        self.compression = compression
        self._rank = rank
        self._module: Any = module
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
        factor = numpy.float32(scale)
        with numpy.errstate(all="ignore"):  # a gradient that is not finite is found later
            for owner, piece in self._pieces(len(vector), shards):
                wanted = self._wanted[: piece.stop - piece.start]
                sent = self._sent[: piece.stop - piece.start]
                self._module.multiply(before[piece], factor, out=wanted)
                wanted += vector[piece]
                vector[piece] = wanted
                sent[...] = vector[piece]
                if owner != self._rank:
                    self.compression.quantise(sent, self._codes, self._module)
                wanted -= sent
                self._module.divide(wanted, factor, out=after[piece])

    def feed_sums(self, sums: Array, after: Array, scale: float = 1.0) -> None:
        """Add to `after` what will be lost of the sums of this rank's shard, about to be sent."""
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
                after[start : start + len(part)] += wanted

    def _pieces(self, size: int, shards: int) -> Iterator[tuple[int, slice]]:
        """The pieces of a vector, each with the rank that sums it; each begins with a group."""
        for owner, (first, last) in enumerate(pairwise(bounds(size, shards))):
            for start in range(first, last, len(self._wanted)):
                yield owner, slice(start, min(start + len(self._wanted), last))
