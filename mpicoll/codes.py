"""What a compressed call sends in the place of float32 elements: groups, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

from .errors import ArgumentError, did_you_mean
from .schedule import MAX_MESSAGE_BYTES, bounds

#: what `compression` may be, beside None; in the order of the extension's table
CompressionName = Literal["float16", "bfloat16", "int8", "int4"]
NAMES: tuple[CompressionName, ...] = get_args(CompressionName)
#: element types of compressed calls, by name; work is done in float32
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: bytes of an element that is coded
ITEMSIZE = 4


@dataclass(frozen=True)
class Codes:
    """The size and the error of one kind of codes.

    Attributes
    ----------
    name : str
        What `compression=` calls it.
    group : int
        Elements with one scale.
    nbytes : int
        Bytes of the codes of a group; those of a shorter one, at the end of a block, too.
    largest : int
        The largest integer; 0: elements are rounded, and have no scale.
    error : float
        The relative error (RMS) of one quantisation of Gaussian data.
    """

    name: CompressionName
    group: int
    nbytes: int
    largest: int
    error: float

    @property
    def share(self) -> float:
        """Bytes of codes for each byte of float32 elements."""
        return self.nbytes / (self.group * ITEMSIZE)

    def groups(self, elements: int) -> int:
        """The groups of a block of so many elements."""
        return -(-elements // self.group)

    def per_message(self, most_bytes: int) -> int:
        """The groups in a message of at most so many bytes; their elements fit into one, too."""
        most = MAX_MESSAGE_BYTES // (self.group * ITEMSIZE)
        return max(1, min(most_bytes // self.nbytes, most))

    def edges(self, count: int, blocks: int) -> list[int]:
        """The edges of the blocks of a vector that is cut evenly, between groups.

        >>> codes_of("int8").edges(1000, 2)
        [0, 512, 1000]
        """
        return [min(edge * self.group, count) for edge in bounds(self.groups(count), blocks)]

    def expected_error(self, quantisations: int) -> float:
        """The relative error (RMS) of Gaussian data after so many independent quantisations.

        >>> round(codes_of("int8").expected_error(2), 4)
        0.0099
        """
        return self.error * sqrt(quantisations)


_KNOWN: dict[str, Codes] = {
    codes.name: codes
    for codes in (
        Codes("float16", 1, 2, 0, 0.0002),
        Codes("bfloat16", 1, 2, 0, 0.0017),
        Codes("int8", 256, 260, 127, 0.0070),
        Codes("int4", 64, 36, 7, 0.107),
    )
}


def codes_of(name: str) -> Codes:
    """The codes of that name.

    Raises
    ------
    ArgumentError
        There are none; the message lists them.
    """
    if name not in _KNOWN:
        expected = f"None, {', '.join(map(repr, NAMES))}"
        raise ArgumentError(
            f"compression: expected {expected}, got {name!r}{did_you_mean(str(name), NAMES)}"
        )
    return _KNOWN[name]
