"""Sizes, rates and times as text.

Sizes are ``64K``, ``8m``, ``1.5G`` (factors of 1024) or ``inf``, rates ``500mbit`` or ``1Gb/s``.
"""

import re
import reprlib
from math import inf

from ..errors import ArgumentError

_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_POWERS_OF_A_SECOND = {"s": 0, "ms": -3, "us": -6, "µs": -6, "ns": -9}

#: no file, memory or vector has so many bytes
_TOO_MANY = 2**63


def shown(text: object) -> str:
    """A value as an error shows it: cut to about 80 characters."""
    short = reprlib.Repr()
    short.maxstring = 80
    short.maxother = 80
    return short.repr(text)


def parse_bytes(text: object) -> float:
    """Number of bytes that `text` means, below 2**63; `inf` gives a float infinity.

    >>> parse_bytes("64K"), parse_bytes("1.5m"), parse_bytes("12")
    (65536, 1572864, 12)
    """
    if str(text).strip().lower() == "inf":
        return float("inf")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(text), re.IGNORECASE)
    if not match:
        raise ArgumentError(f"expected a size such as 4096, 64K, 8M or 1G, got {shown(text)}")
    nbytes = float(match[1]) * _FACTORS[match[2].lower()]
    if nbytes >= _TOO_MANY:
        raise ArgumentError(
            f"expected a size below 2**63 bytes, such as 4096, 64K, 8M or 1G, got {shown(text)}"
        )
    return int(nbytes)


def parse_rate(text: object) -> float:
    """Bits per second that `text` means: as `tc` writes them, or with ``b/s`` (factors of 1000).

    Always above 0. A capital B would be bytes, and `tc` reads ``mbps`` as bytes too: both are
    refused. With a capital prefix, as in ``Gbps``, the unit is bits.

    >>> parse_rate("500mbit"), parse_rate("2.5 Gb/s"), parse_rate("100Gbps")
    (500000000.0, 2500000000.0, 100000000000.0)
    """
    form = r"\s*(\d+(?:\.\d+)?)\s*(?:([kKmMgGtT]?)(?:[bB]it(?:/s)?|b/s)|([KMGT])bps)\s*"
    match = re.fullmatch(form, str(text))
    rate = float(match[1]) * _RATES[(match[2] or match[3] or "").lower()] if match else 0.0
    if not 0 < rate < inf:
        raise ArgumentError(
            "expected a rate in bits per second such as 500mbit, 1gbit, 2.5Gb/s or 100Gbps, "
            f"got {shown(text)}"
        )
    return rate


def format_bytes(number: int) -> str:
    """The shortest exact way to write `number` bytes.

    >>> format_bytes(65536), format_bytes(1000)
    ('64K', '1000')
    """
    for suffix in "tgmk":
        if number and number % _FACTORS[suffix] == 0:
            return f"{number // _FACTORS[suffix]}{suffix.upper()}"
    return str(number)


def format_seconds(seconds: float) -> str:
    """Seconds with three digits.

    >>> [format_seconds(seconds) for seconds in (8.123e-6, 0.01234, 123, 0.9996)]
    ['8.12us', '12.3ms', '123s', '1.00s']
    """
    for unit, power in (("us", 6), ("ms", 3), ("s", 0)):
        value = seconds * 10**power
        if value < 999.5 or unit == "s":
            break
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}{unit}"


def many(number: int, what: str) -> str:
    """A number and its noun.

    >>> many(1, "bucket"), many(2, "bucket")
    ('1 bucket', '2 buckets')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def parse_seconds(text: object) -> float:
    """Seconds that `text` means; only 0 needs no unit.

    >>> parse_seconds("5us"), parse_seconds("1.5 ms"), parse_seconds("0")
    (5e-06, 0.0015, 0.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mnuµ]?s)?\s*", str(text))
    seconds = float(f"{match[1]}e{_POWERS_OF_A_SECOND[match[2] or 's']}") if match else inf
    if not match or not (match[2] or seconds == 0) or seconds == inf:
        raise ArgumentError(f"expected a time such as 5us, 1.5ms or 2s, got {shown(text)}")
    return seconds
