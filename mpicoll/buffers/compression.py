"""Codes of floats with less bits: what a compressed call sends in the place of float32 elements.

`int8` and `int4` quantise groups of elements: integers, and the scale of the group in float32, the
largest magnitude over the largest integer. An element is off by half a scale at most. `float16` and
`bfloat16` round each element. A group with an infinity or nan is decoded as nan, whole; a float16
or bfloat16 beyond its range is an infinity. Zeros have no sign in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ..codes import FLOATS, Codes, CompressionName, codes_of
from .device import reading, writing
from .operand import Operand, room_of

#: a scale is at least so large: with a smaller one, a division could have no finite result
_LEAST = float(np.finfo(np.float32).tiny)
#: the largest float32: larger sums are no finite elements
_MOST = float(np.finfo(np.float32).max)
#: elements of a piece: intermediate results stay in the cache
_PIECE = 1 << 15
_DEVICE_PIECE = 1 << 24
#: of elements that are rounded: the relative step between codes, the least step, and the largest
_ROUNDED = {
    "float16": (2.0**-10, 2.0**-24, 65504.0),
    "bfloat16": (2.0**-7, 2.0**-133, 3.3895e38),
}

_Convert = Callable[[Any, Any, Any], None]


@dataclass(frozen=True)
class Compression(Codes):
    """How elements become codes.

    Attributes
    ----------
    encode_groups, decode_groups : callable
        Convert whole groups: (module, elements, codes).
    """

    encode_groups: _Convert
    decode_groups: _Convert

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

    def bound(
        self,
        contributions: Any,
        quantisations: int,
        nodes: Sequence[int] | None = None,
        resolution: float = 2.0**-23,
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How far elements of a compressed result may be from the exact ones.

        Half the scales of all contributions' groups, half the scale of the result's group where the
        result is quantised too, and what sums are rounded by. Infinite where nothing is promised.

        Parameters
        ----------
        contributions : array, shape (ranks, elements)
            Of elements of one block, the first of which begins a group.
        quantisations : int
            Of a value on its way into the result: 0, 1 or 2.
        nodes : sequence of int, optional
            The node of each rank, where nodes are summed before they are quantised.
        resolution : float
            The relative distance of two numbers of the caller's type, or of float32's if that is
            larger.
        """
        with np.errstate(all="ignore"):
            exact = np.asarray(contributions, np.float64)
            node_of = np.arange(len(exact)) if nodes is None else np.asarray(nodes)
            far = np.zeros(exact.shape[1])
            for node in np.unique(node_of) if quantisations else ():
                far += self._steps(np.abs(exact[node_of == node].sum(axis=0))) / 2
            if quantisations > 1:
                far += self._steps(np.abs(exact.sum(axis=0)) + far) / 2
            far += (len(exact) + 2) * resolution * (np.abs(exact).sum(axis=0) + far)
            overflows = (np.abs(exact.sum(axis=0)) + far > _MOST) & (quantisations > 0)
        far[np.isnan(far) | overflows] = np.inf
        return far

    def _steps(self, magnitudes: Any) -> Any:
        """The distance between two codes at each element: the scale of its group."""
        if not self.largest:
            relative, least, most = _ROUNDED[self.name]
            steps = np.maximum(magnitudes * relative, least)
            return np.where(magnitudes <= most, steps, np.inf)
        count = len(magnitudes)
        groups = np.zeros((self.groups(count), self.group))
        groups.reshape(-1)[:count] = magnitudes
        most = groups.max(axis=1)
        scales = np.maximum(most / self.largest, _LEAST)
        scales[most > _MOST] = np.inf
        return np.repeat(scales, self.group)[:count]

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
    scales = module.minimum(scales, _largest_scale(largest))
    scales[~module.isfinite(most)] = np.nan
    scaled = groups / scales[:, None]
    return module.rint(scaled, out=scaled), scales


def _largest_scale(largest: int) -> np.float32:
    """The largest scale of which `largest` times it is finite."""
    scale = np.float32(_MOST / largest)
    return scale if float(scale) * largest <= _MOST else np.nextafter(scale, np.float32(0))


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


_CONVERTED: dict[CompressionName, tuple[_Convert, _Convert]] = {
    "float16": (_encode_float16, _decode_float16),
    "bfloat16": (_encode_bfloat16, _decode_bfloat16),
    "int8": (_encode_int8, _decode_int8),
    "int4": (_encode_int4, _decode_int4),
}
_KNOWN: dict[str, Compression] = {
    name: Compression(**asdict(codes_of(name)), encode_groups=encode, decode_groups=decode)
    for name, (encode, decode) in _CONVERTED.items()
}


def compression_of(name: str) -> Compression:
    """The compression of that name.

    Raises
    ------
    ArgumentError
        There is none; the message lists them.
    """
    return _KNOWN[codes_of(name).name]


def cannot_be_compressed(operand: Operand) -> str:
    """Why an operand cannot be compressed; empty where it can."""
    dtype = operand.dtype
    if dtype is None or dtype.name not in FLOATS:
        kind = "a derived datatype" if dtype is None else dtype
        return f"{kind} cannot be compressed; {', '.join(FLOATS)} can"
    return ""


def as_float32(operand: Operand) -> Operand:
    """An operand of the same elements in float32, converted before and after the call."""
    assert operand.dtype is not None
    dtype = np.dtype(np.float32)
    if operand.dtype == dtype:
        return operand
    count = operand.nbytes // operand.dtype.itemsize
    wide = Operand(operand.buffer, MPI.FLOAT, dtype, count * dtype.itemsize)
    wide.footprint = operand.footprint
    wide.lie_with(operand)
    wide.pack = partial(_widen, operand)
    wide.unpack = partial(_narrow, operand)
    wide.sums = operand.sums and as_float32(operand.sums)
    return wide


def _widen(operand: Operand, work: Any) -> None:
    with reading(operand), np.errstate(all="ignore"):
        elements = room_of(operand)
        if operand.packed:
            operand.pack(elements)
        work.view(np.float32)[...] = elements.view(operand.dtype)


def _narrow(operand: Operand, work: Any) -> None:
    with writing(operand), np.errstate(all="ignore"):
        elements = room_of(operand)
        elements.view(operand.dtype)[...] = work.view(np.float32)
        if operand.packed:
            operand.unpack(elements)
