"""Sizes as people write them: ``64K``, ``8m``, ``1.5G`` (factors of 1024), ``inf``."""

import re

from .errors import ArgumentError

_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(text):
    """Number of bytes that `text` means; `inf` gives a float infinity.

    >>> parse_bytes("64K"), parse_bytes("1.5m"), parse_bytes("12")
    (65536, 1572864, 12)
    """
    if str(text).strip().lower() == "inf":
        return float("inf")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(text), re.IGNORECASE)
    if not match:
        raise ArgumentError(f"expected a size such as 4096, 64K, 8M or 1G, got {text!r}")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def format_bytes(number):
    """The shortest exact way to write `number` bytes.

    >>> format_bytes(65536), format_bytes(1000)
    ('64K', '1000')
    """
    for suffix in "tgmk":
        if number and number % _FACTORS[suffix] == 0:
            return f"{number // _FACTORS[suffix]}{suffix.upper()}"
    return str(number)
