"""The options of the transformer's size, for all programs that train it."""

from __future__ import annotations

import argparse


def add_size(
    parser: argparse.ArgumentParser, *, width: int = 64, layers: int = 2, length: int = 64
) -> None:
    """Add --width, --layers and --length; of what is learned, the defaults are those of all."""
    group = parser.add_argument_group("the transformer's size")
    add = group.add_argument
    add("--width", type=int, default=width, help=f"of its layers (default {width})")
    add("--layers", type=int, default=layers, help=f"how many there are (default {layers})")
    add("--length", type=int, default=length, help=f"characters of a piece (default {length})")
