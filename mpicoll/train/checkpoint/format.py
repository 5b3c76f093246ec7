"""One checkpoint's files: the pieces of a rank, the manifest, and reading them. No MPI.

A manifest is JSON: schema, step, `vectors` {name: {dtype, total, pieces: [[start, stop, rank,
offset in bytes], …]}}, `files` [{bytes, crc32} of each rank's file], `meta`, and the crc32 of all
that. Numbers are in the machine's byte order.
"""

from __future__ import annotations

import bisect
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy

from ...errors import ArgumentError, MpicollError
from ...support.arrays import Array, element_type
from ...support.checks import check, check_integer, check_word
from ...support.files import parse_json

SCHEMA = 1
MANIFEST = "manifest.json"
DTYPES = ("float16", "bfloat16", "float32", "float64")

#: what a rank holds: for each vector (start, 1-D array) of the stretches it has
Vectors: TypeAlias = Mapping[str, Sequence[tuple[int, Array]]]
#: what JSON can hold
Json: TypeAlias = dict[str, Any]


class Piece(NamedTuple):
    """Elements start to stop of a vector in a rank's file, from `offset` in bytes on."""

    vector: str
    dtype: str
    start: int
    stop: int
    offset: int


class Damaged(MpicollError):
    """A checkpoint that cannot be used: the message says which of its files, and why."""


class Checkpoint:
    """A complete checkpoint, to be read before the next save, which may remove it.

    `step`, `meta` (what was given to save, as JSON gives it back), `totals` {name: length}, `ranks`
    (how many wrote it), `path`.
    """

    def __init__(self, path: Path, manifest: Json) -> None:
        self.path = path
        self.step = int(manifest["step"])
        self.meta = manifest["meta"]
        self.ranks = len(manifest["files"])
        self._vectors = manifest["vectors"]
        self.totals: dict[str, int] = {
            name: vector["total"] for name, vector in self._vectors.items()
        }
        self._files: dict[int, Array] = {}

    def read(self, name: str, start: int, stop: int) -> Array:
        """Elements `start` to `stop` of a vector. Local to the rank.

        Parameters
        ----------
        name : str
            One of `totals`.
        start, stop : int
            Elements, from 0 to its total.

        Returns
        -------
        ndarray, shape (stop - start,)
            New, of the dtype it was saved in. Only the parts of the files that hold these elements
            are read.

        Raises
        ------
        ArgumentError
            For a name or bounds that the checkpoint does not have.
        """
        check_word("vector", name, self._vectors)
        vector = self._vectors[name]
        check(
            f"bounds in {name}",
            (start, stop),
            0 <= start <= stop <= vector["total"],
            f"within {vector['total']} elements",
        )
        result = numpy.empty(stop - start, element_type(vector["dtype"]))
        size = result.itemsize
        pieces = vector["pieces"]
        # as bytes: pieces of another vector's dtype before this one may leave it unaligned
        into = result.view("uint8")
        first = max(bisect.bisect_right(pieces, start, key=lambda piece: piece[0]) - 1, 0)
        for low, high, rank, offset in pieces[first:]:
            if low >= stop:
                break
            begin = max(low, start)
            end = min(high, stop)
            found = self._file(rank)[offset + (begin - low) * size : offset + (end - low) * size]
            into[(begin - start) * size : (end - start) * size] = found
        return result

    def _file(self, rank: int) -> Array:
        if rank not in self._files:
            self._files[rank] = numpy.memmap(self.path / file_name(rank), "uint8", "r")
        return self._files[rank]


def file_name(rank: int) -> str:
    """Name of the file that a rank writes."""
    return f"rank-{rank:04d}.bin"


def pieces_of(vectors: Vectors) -> list[Piece]:
    """What is in a rank's file, in order: a piece for each array that is not empty.

    Raises ArgumentError for an array that is not 1-D, or not of one of DTYPES.
    """
    found: list[Piece] = []
    offset = 0
    for name, pieces in vectors.items():
        for start, array in pieces:
            check(f"shape of {name}", array.shape, array.ndim == 1, "1-D arrays")
            check_word(f"dtype of {name}", array.dtype.name, DTYPES)
            check_integer(f"start in {name}", start, 0)
            if len(array):
                found.append(
                    Piece(name, array.dtype.name, int(start), int(start) + len(array), offset)
                )
                offset += array.nbytes
    return found


def chunks_of(vectors: Vectors) -> Iterator[memoryview]:
    """The arrays as bytes in host memory, one at a time, in the order of `pieces_of`."""
    for pieces in vectors.values():
        for _, array in pieces:
            host = array.get() if hasattr(array, "get") else array
            yield numpy.ascontiguousarray(host).view("uint8").data


def vectors_of(totals: Mapping[str, int], everyone: Sequence[Sequence[Piece]]) -> Json:
    """The manifest's `vectors`, out of `pieces_of` from every rank.

    Raises ArgumentError unless the pieces of each vector have one dtype and cover 0 to its total
    exactly once.
    """
    flat = sorted(
        _Held(*piece[:4], rank, piece.offset)
        for rank, mine in enumerate(everyone)
        for piece in mine
    )
    found = {name: list(group) for name, group in groupby(flat, key=lambda held: held.vector)}
    for name in found:
        check_word("vector", name, totals)
    return {name: _vector(name, total, found.get(name, [])) for name, total in totals.items()}


class _Held(NamedTuple):
    """A piece, and the rank that has it."""

    vector: str
    dtype: str
    start: int
    stop: int
    rank: int
    offset: int


def _vector(name: str, total: int, held: Sequence[_Held]) -> Json:
    check_integer(f"total of {name}", total, 0)
    dtypes = sorted({piece.dtype for piece in held}) or ["float64"]
    check(f"dtype of {name}", dtypes, len(dtypes) == 1, "the same on all ranks")
    reached = 0
    for piece in held:
        problem = (
            "are on no rank" if piece.start > reached else f"are on rank {piece.rank} and another"
        )
        limits = sorted((piece.start, reached))
        check(
            f"pieces of {name}",
            limits,
            piece.start == reached,
            f"each element once, but those between these bounds {problem}",
        )
        reached = piece.stop
    check(f"pieces of {name}", reached, reached == total, f"all {total} elements")
    return {"dtype": dtypes[0], "total": int(total), "pieces": [list(piece[2:]) for piece in held]}


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, int]:
    """Write a new file, through to the disk: {"bytes", "crc32"} of it. Raises OSError."""
    size = 0
    checksum = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            size = size + len(chunk)
            checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": checksum}


def write_manifest(
    path: Path, step: int, vectors: Json, files: Sequence[dict[str, int]], meta: Json
) -> None:
    """Write the manifest of the directory `path`, through to the disk. Raises OSError."""
    content = {
        "schema": SCHEMA,
        "step": int(step),
        "vectors": vectors,
        "files": files,
        "meta": meta,
    }
    # keys become text before they are sorted, as they will be when it is read
    content = json.loads(json.dumps(content))
    text = json.dumps({**content, "crc32": _checksum(content)}, separators=(",", ":"))
    write_file(path / MANIFEST, [text.encode()])


def _checksum(content: Json) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def check_meta(meta: Json) -> None:
    """Raise ArgumentError unless JSON can hold `meta`."""
    try:
        json.dumps(meta)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"meta: expected what JSON can hold, got {meta!r} ({error})") from None


def read_manifest(path: Path) -> Json:
    """The manifest of the directory `path`. Raises Damaged."""
    try:
        content: Json = parse_json((path / MANIFEST).read_bytes())
        expected = content.pop("crc32")
    except OSError as error:
        raise Damaged(f"{MANIFEST}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{MANIFEST} is not the manifest of a checkpoint") from None
    if (found := _checksum(content)) != expected:
        raise Damaged(f"{MANIFEST} has checksum {found}, and says {expected}")
    if content.get("schema") != SCHEMA:
        raise Damaged(f"{MANIFEST} has schema {content.get('schema')}; this version reads {SCHEMA}")
    try:
        _check_fields(content)
    except (LookupError, TypeError, AttributeError, ValueError):
        raise Damaged(f"{MANIFEST} lacks or misuses a field") from None
    return content


def _check_fields(content: Json) -> None:
    """Raise an error unless all fields are there, and the pieces lie within the files."""
    check_integer("step", content["step"], 0)
    content["meta"].items()
    sizes = [file["bytes"] for file in content["files"]]
    for name, vector in content["vectors"].items():
        itemsize = element_type(vector["dtype"]).itemsize
        reached = 0
        for start, stop, rank, offset in vector["pieces"]:
            check_integer(name, min(start, rank, offset), 0)
            fits = offset + (stop - start) * itemsize <= sizes[rank]
            check(
                name,
                start,
                start == reached < stop and fits,
                "a piece after the other, in the files",
            )
            reached = stop
        check(name, vector["total"], vector["total"] == reached, f"{reached}, what its pieces have")


def check_file(path: Path, rank: int, expected: Mapping[str, int]) -> None:
    """Read a rank's file and raise Damaged unless it has the {"bytes", "crc32"} expected."""
    name = file_name(rank)
    try:
        if (size := os.stat(path / name).st_size) != expected["bytes"]:
            raise Damaged(f"{name} has {size} bytes, the manifest says {expected['bytes']}")
        checksum = 0
        with open(path / name, "rb") as file:
            while chunk := file.read(1 << 20):
                checksum = zlib.crc32(chunk, checksum)
    except OSError as error:
        raise Damaged(f"{name}: {error.strerror}") from None
    if checksum != expected["crc32"]:
        raise Damaged(f"{name} has checksum {checksum}, the manifest says {expected['crc32']}")
