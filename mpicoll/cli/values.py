"""Values of options as argparse wants them: a function of the text, whose error is a sentence."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import isfinite
from typing import TypeVar

from ..errors import ArgumentError
from ..support.units import parse_bytes, shown

Value = TypeVar("Value")

#: beyond any number of ranks, steps or bytes
_LIMIT = 2**63


def whole(text: str) -> int:
    """A whole number."""
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, got {shown(text)}") from None
    if abs(number) >= _LIMIT:
        raise ArgumentTypeError(f"expected a whole number below 2**63, got {shown(text)}")
    return number


def assignment(text: str) -> tuple[str, str]:
    """A name and its value.

    >>> assignment("STRATEGY=zero1")
    ('STRATEGY', 'zero1')
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"expected NAME=VALUE, got {shown(text)}")
    return name, value


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ArgumentTypeError(f"expected a finite number, got {shown(text)}")
    return value


def sentence(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """`parse`, whose ArgumentError argparse would replace by words of its own."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ArgumentError as error:
            raise ArgumentTypeError(str(error)) from None

    return parsed


def parsed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """What the text of an option means; the error names the option."""
    try:
        return parse(text)
    except ArgumentError as error:
        raise ArgumentError(f"{option}: {error}") from None


size = sentence(parse_bytes)
