"""Arrays of an .npz archive, mapped instead of read where the archive stores them as they are."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from typing import Literal

import numpy
from numpy.lib import format as npy

from ...errors import ArgumentError
from ...support.arrays import Array

#: what zipfile and numpy raise for files that are damaged, or made to be
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Archive:
    """The arrays of an .npz file that `numpy.savez` wrote, by name: `archive["x"]`.

    names: those of all its arrays. An array of `savez` is a read-only map of the file, whose pages
    are read when they are used (its checksum is not looked at); one of `savez_compressed` is read
    into memory. Nothing is unpickled. Raises ArgumentError where the file is missing, is not such
    an archive, is damaged, or holds Python objects.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        with self._open() as archive:
            self.names = [
                name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
            ]

    def __getitem__(self, name: str) -> Array:
        with self._open() as archive:
            try:
                return self._read(archive, archive.getinfo(f"{name}.npy"))
            except _UNREADABLE as error:
                raise self._unreadable(f"its array {name!r}: {error}") from error

    def _open(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except _UNREADABLE as error:
            raise self._unreadable(getattr(error, "strerror", None) or error) from error

    def _unreadable(self, reason: object) -> ArgumentError:
        return ArgumentError(
            f"{self.path}: cannot be read ({reason}); expected a whole file that numpy.savez wrote"
        )

    def _read(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
        """The array of one member: a map of it, or a copy if it is compressed or empty."""
        with archive.open(info) as member:
            version = npy.read_magic(member)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the npy format")
            shape, fortran, dtype = _HEADERS[version](member)
            start = member.tell()
            length = math.prod(shape) * dtype.itemsize
            if dtype.hasobject:
                raise ValueError("Python objects, which could run code when loaded")
            if start + length != info.file_size:
                raise ValueError(
                    f"{info.file_size - start} bytes where {shape} of {dtype} takes {length}"
                )
            if length and info.compress_type == zipfile.ZIP_STORED:
                offset = _data_offset(archive, info) + start
                order: Literal["C", "F"] = "F" if fortran else "C"
                return numpy.asarray(numpy.memmap(self.path, dtype, "r", offset, shape, order))
            member.seek(0)
            return npy.read_array(member, allow_pickle=False)


def _data_offset(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin in the file: after its local header.

    The last two fields of the header give its length.
    """
    assert archive.fp is not None  # it is open
    archive.fp.seek(info.header_offset + 26)
    name, extra = numpy.frombuffer(archive.fp.read(4), "<u2").tolist()
    return info.header_offset + 30 + int(name) + int(extra)
