"""Options that several commands have, each declared once."""

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import fields
from inspect import cleandoc
from typing import Any

from .. import algorithms
from ..algorithms import AlgorithmName
from ..codes import codes_of
from ..collectives import CollectiveName
from ..errors import ArgumentError
from ..support.units import parse_bytes
from .values import number, parsed, size, whole

#: {option: keywords of `add_argument`}
SHARED: dict[str, dict[str, Any]] = {
    "--sizes": {
        "metavar": "A:B",
        "help": "bytes of the vector: a range, one size, or a list; a barrier has none",
    },
    "--factor": {"type": whole, "metavar": "N", "help": "ratio of successive sizes of a range"},
    "--dtype": {"default": "float32", "help": "element type"},
    "--min-time": {
        "type": number,
        "metavar": "S",
        "help": "seconds per size for all candidates together",
    },
    "--compression": {
        "metavar": "NAME",
        "help": "quantise the messages: int8, int4, float16 or bfloat16",
    },
    "--device": {
        "default": "cpu",
        "help": "cpu, or cuda: each rank uses the GPU of its local rank, modulo their number",
    },
    "--graph": {
        "metavar": "FILE",
        "help": (
            'neighbourhood collectives: a line "RANK: DESTINATION ..." for each rank, or "dims: '
            'LENGTH ..." and "periods: 0-OR-1 ..."; and "nodes: NODE ..."'
        ),
    },
    "--file": {
        "metavar": "MINE.py",
        "help": "a file that calls mpicoll.register(collective, name, generator)",
    },
    "--json": {"metavar": "FILE", "help": "write the results to this file"},
    "--done": {
        "metavar": "FILE",
        "help": (
            "rank 0 writes this file after success and only then; a job script checks it, since a"
            " launcher's exit status may be 0 after the loss of a node"
        ),
    },
}


def add_shared(parser: ArgumentParser, *names: str, **defaults: Any) -> None:
    """Add shared options, by name. defaults: {name without dashes: value}, which adds them too."""
    for name in names:
        parser.add_argument(name, **SHARED[name])
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, **SHARED[option] | {"default": default})


def add_fields(parser: ArgumentParser, declared: type) -> None:
    """Add an option for each field of a dataclass, with what its docstring says of the field."""
    told = parameters_of(declared)
    for field in fields(declared):
        values, text = told[field.name]
        if values.startswith("{"):
            words = re.sub('[{}"]', "", values)
            text = f"{words}. {text}"
        read = _read_as(field.name, values)
        keywords = {"help": text.rstrip("."), "default": field.default, **read}
        parser.add_argument(f"--{field.name.replace('_', '-')}", **keywords)


def _read_as(name: str, kind: str) -> dict[str, Any]:
    """Keywords of `add_argument` for the kind of values that a docstring names."""
    if kind == "bool":
        return {"action": "store_true"}
    if kind == "bool or int":
        return {"type": whole, "nargs": "?", "const": True, "metavar": "N"}
    if kind == "int":
        return {"type": size if name.endswith("_bytes") else whole, "metavar": "N"}
    return {"type": number, "metavar": "X"} if kind == "float" else {"metavar": "WORD"}


def parameters_of(documented: object) -> dict[str, tuple[str, str]]:
    """{parameter: (its values, what is said of it)} of a docstring in NumPy's style."""
    text = cleandoc(documented.__doc__ or "").partition("Parameters\n----------\n")[2]
    entries = re.findall(r"^(\w+) : (.*?)(?:, optional)?\n((?:    .*\n?)+)", text, re.MULTILINE)
    return {name: (values, " ".join(told.split())) for name, values, told in entries}


def compressible(collective: CollectiveName) -> list[AlgorithmName]:
    """The algorithms of a collective that --compression takes."""
    registered = algorithms.registered(collective)
    return [AlgorithmName(each.name) for each in registered if each.compressible]


def must_be_compressible(
    compression: str, collective: CollectiveName, words: Sequence[str] = ()
) -> None:
    """Raise ArgumentError unless codes of that name can be in the messages of these algorithms."""
    codes_of(compression)
    option = f"--compression {compression}"
    able = compressible(collective)
    if not able:
        raise ArgumentError(f"{option}: {collective} cannot be compressed")
    for word in words:
        if word not in able:
            names = ", ".join(able)
            raise ArgumentError(f"{option}: {word} cannot be compressed; these can: {names}")


def must_take_time(min_time: float) -> None:
    """Raise ArgumentError for a --min-time in which nothing can be measured."""
    if not 0 < min_time < float("inf"):
        raise ArgumentError(f"--min-time: expected more than 0 seconds, got {min_time}")


def parse_sizes(text: str, factor: int = 2, option: str = "--sizes") -> list[int]:
    """Numbers of bytes, ascending.

    >>> parse_sizes("1K:4K"), parse_sizes("64,1K")
    ([1024, 2048, 4096], [64, 1024])
    """
    if factor < 2:
        raise ArgumentError(f"--factor: expected 2 or more, got {factor}")
    sizes: set[int] = set()
    for entry in text.split(","):
        low, _, high = entry.partition(":")
        size = parsed(option, parse_bytes, low)
        last = parsed(option, parse_bytes, high or low)
        if not 0 < size <= last < float("inf"):
            raise ArgumentError(
                f"{option}: expected sizes such as 4K:64M, 1M or 4K,64K, got {entry!r}"
            )
        while size <= last:
            sizes.add(int(size))
            size *= factor
    return sorted(sizes)
