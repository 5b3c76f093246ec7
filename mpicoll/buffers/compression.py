"""Codes of floats with less bits: what a compressed call sends in the place of float32 elements.

`int8` and `int4` quantise groups of elements: integers, and the scale of the group in float32, the
largest magnitude over the largest integer. An element is off by half a scale at most. `float16` and
`bfloat16` round each element. A group with an infinity or nan is decoded as nan, whole; a float16
beyond its range is an infinity. Zeros have no sign in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError, did_you_mean
from ..schedule import CompressionName, bounds
from .device import reading, writing
from .operand import Operand, bytes_of

#: what `compression` may be, beside None
NAMES: tuple[CompressionName, ...] = get_args(CompressionName)
#: element types of compressed calls, by name; work is done in float32
TYPES = ("float32", "float64", "float16", "bfloat16")
#: a scale is at least so large: with a smaller one, a division could have no finite result
_LEAST = float(np.finfo(np.float32).tiny)
#: elements of a piece: intermediate results stay in the cache
_PIECE = 1 << 15
_DEVICE_PIECE = 1 << 24

_Convert = Callable[[Any, Any, Any], None]


class Compression(NamedTuple):
    """How elements become codes.

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
    encode_groups, decode_groups : callable
        Convert whole groups: (module, elements, codes).
    """

    name: CompressionName
    group: int
    nbytes: int
    largest: int
    error: float
    encode_groups: _Convert
    decode_groups: _Convert

    def groups(self, elements: int) -> int:
        """The groups of a block of so many elements."""
        return -(-elements // self.group)

    def edges(self, elements: int, blocks: int) -> list[int]:
        """Where the blocks of a vector that is cut evenly begin and end: between groups."""
        groups = bounds(self.groups(elements), blocks)
        return [min(edge * self.group, elements) for edge in groups]

    def encode(self, codes: Any, elements: Any, module: Any = np) -> None:
        """Write the codes of some elements.

        Parameters
        ----------
        codes : array of uint8, shape (groups(n) * nbytes,)
            Is written.
        elements : array of float32, shape (n,)
            Is read.
        module : module
            NumPy or CuPy.
        """
        with np.errstate(all="ignore"):
            for part, room in self._pieces(elements, codes, module):
                if short := len(part) % self.group:
                    whole = module.zeros(len(part) - short + self.group, np.float32)
                    whole[: len(part)] = part
                    part = whole
                self.encode_groups(module, part, room)

    def decode(self, elements: Any, codes: Any, module: Any = np) -> None:
        """Write the elements of some codes; see `encode`."""
        with np.errstate(all="ignore"):
            for part, room in self._pieces(elements, codes, module):
                short = len(part) % self.group
                whole = module.empty(len(part) - short + self.group, np.float32) if short else part
                self.decode_groups(module, whole, room)
                if short:
                    part[...] = whole[: len(part)]

    def quantise(self, elements: Any, codes: Any, module: Any = np) -> None:
        """Replace elements by what is decoded of their codes, for which there is room."""
        codes = codes[: self.groups(len(elements)) * self.nbytes]
        self.encode(codes, elements, module)
        self.decode(elements, codes, module)

    def _pieces(self, elements: Any, codes: Any, module: Any) -> Iterator[tuple[Any, Any]]:
        """Parts of both."""
        step = _PIECE if module is np else _DEVICE_PIECE
        for start in range(0, len(elements), step):
            part = elements[start : start + step]
            first = start // self.group
            yield part, codes[first * self.nbytes : (first + self.groups(len(part))) * self.nbytes]


def _scaled(module: Any, elements: Any, group: int, largest: int) -> tuple[Any, Any]:
    """The elements in units of their group's scale, and the scales."""
    groups = elements.reshape(-1, group)
    most = module.abs(groups).max(axis=1)
    scales = module.maximum(most / np.float32(largest), np.float32(_LEAST))
    scales[~module.isfinite(most)] = np.nan
    scaled = groups / scales[:, None]
    return module.rint(scaled, out=scaled), scales


def _encode_int8(module: Any, elements: Any, codes: Any) -> None:
    whole, scales = _scaled(module, elements, 256, 127)
    records = codes.reshape(-1, 260)
    records[:, :4] = scales[:, None].view(np.uint8)
    records[:, 4:].view(np.int8)[...] = whole


def _decode_int8(module: Any, elements: Any, codes: Any) -> None:
    records = codes.reshape(-1, 260)
    groups = elements.reshape(-1, 256)
    module.multiply(records[:, 4:].view(np.int8), _scales(module, records), out=groups)


def _encode_int4(module: Any, elements: Any, codes: Any) -> None:
    """The first half of a group in the lower four bits."""
    whole, scales = _scaled(module, elements, 64, 7)
    records = codes.reshape(-1, 36)
    records[:, :4] = scales[:, None].view(np.uint8)
    bits = whole.astype(np.int8).view(np.uint8)
    records[:, 4:] = bits[:, :32] & 15 | bits[:, 32:] << 4


def _decode_int4(module: Any, elements: Any, codes: Any) -> None:
    records = codes.reshape(-1, 36)
    groups = elements.reshape(-1, 64)
    scales = _scales(module, records)
    bits = records[:, 4:].view(np.int8)
    module.multiply(bits << 4 >> 4, scales, out=groups[:, :32])
    module.multiply(bits >> 4, scales, out=groups[:, 32:])


def _scales(module: Any, records: Any) -> Any:
    return module.ascontiguousarray(records[:, :4]).view(np.float32)


def _encode_float16(module: Any, elements: Any, codes: Any) -> None:
    codes.view(np.float16)[...] = elements


def _decode_float16(module: Any, elements: Any, codes: Any) -> None:
    elements[...] = codes.view(np.float16)


def _encode_bfloat16(module: Any, elements: Any, codes: Any) -> None:
    """The upper half of the bits, rounded to the nearest, to even; of a nan, it stays one."""
    bits = elements.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    nan = bits >> 16 & 0x8000 | 0x7FC0
    codes.view(np.uint16)[...] = module.where(elements == elements, rounded, nan)


def _decode_bfloat16(module: Any, elements: Any, codes: Any) -> None:
    bits = elements.view(np.uint32)
    bits[...] = codes.view(np.uint16)
    bits <<= 16


_KNOWN: dict[str, Compression] = {
    each.name: each
    for each in (
        Compression("float16", 1, 2, 0, 0.0002, _encode_float16, _decode_float16),
        Compression("bfloat16", 1, 2, 0, 0.0017, _encode_bfloat16, _decode_bfloat16),
        Compression("int8", 256, 260, 127, 0.0070, _encode_int8, _decode_int8),
        Compression("int4", 64, 36, 7, 0.107, _encode_int4, _decode_int4),
    )
}


def compression_of(name: str) -> Compression:
    """The compression of that name.

    Raises
    ------
    ArgumentError
        There is none; the message lists them.
    """
    if name not in _KNOWN:
        expected = f"None, {', '.join(map(repr, NAMES))}"
        raise ArgumentError(
            f"compression: expected {expected}, got {name!r}{did_you_mean(str(name), NAMES)}"
        )
    return _KNOWN[name]


def cannot_be_compressed(operand: Operand) -> str:
    """Why an operand cannot be compressed; empty where it can."""
    dtype = operand.dtype
    if dtype is None or dtype.name not in TYPES:
        kind = "a derived datatype" if dtype is None else dtype
        return f"{kind} cannot be compressed; {', '.join(TYPES)} can"
    return ""


def as_float32(operand: Operand) -> Operand:
    """An operand of the same elements in float32, converted before and after the call."""
    assert operand.dtype is not None
    count = operand.nbytes // operand.dtype.itemsize
    dtype = np.dtype(np.float32)
    wide = Operand(operand.buffer, MPI.FLOAT, dtype, count * dtype.itemsize)
    wide.footprint = operand.footprint
    wide.device = operand.device
    wide.caller_stream = operand.caller_stream
    wide.packs_on = operand.packs_on
    wide.staged = operand.staged
    wide.mirror = operand.mirror
    wide.pack = partial(_widen, operand)
    wide.unpack = partial(_narrow, operand)
    return wide


def _widen(operand: Operand, work: Any) -> None:
    with reading(operand), np.errstate(all="ignore"):
        elements = _room_of(operand)
        if operand.packed:
            operand.pack(elements)
        work.view(np.float32)[...] = elements.view(operand.dtype)


def _narrow(operand: Operand, work: Any) -> None:
    with writing(operand), np.errstate(all="ignore"):
        elements = _room_of(operand)
        elements.view(operand.dtype)[...] = work.view(np.float32)
        if operand.packed:
            operand.unpack(elements)


def _room_of(operand: Operand) -> Any:
    """The caller's bytes, or room for them where they have to be packed."""
    if operand.packed:
        return operand.packs_on.empty(operand.nbytes, np.uint8)
    return bytes_of(operand)
