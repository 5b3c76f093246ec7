"""The size of gradients: loss scaling, the norm for clipping, and non-finite values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from ...support.arrays import Array, module_of
from ...support.checks import check, number_of
from ..options import fixed_scale
from .base import pieces

_FIRST = 2.0**16
_LEAST = 1.0
_MOST = 2.0**24
_PATIENCE = 2000  # good steps in a row after which a dynamic scale is doubled
#: skipped steps in a row after which no scale can be the remedy: halving the largest one as often
#: gives less than the least
HOPELESS = 40


class LossScale:
    """A factor on the loss that keeps gradients above the smallest float16.

    See Micikevicius et al., 2018.

    The loss is multiplied by `value`, the gradients are divided by it again before the update, and
    `update` says whether that update may be made. A fixed scale stays; a `dynamic` one is halved by
    every overflow and doubled after 2,000 good steps in a row, from 65,536 and within 1 to 2**24:
    always a power of two, which costs no rounding. `skipped` counts the steps that were not made.
    Ranks that pass the same arguments to `update` keep the same scale.
    """

    def __init__(self, value: float = 1.0, dynamic: bool = False) -> None:
        check("loss_scale", value, 0 < number_of(value) < math.inf, "a number above 0")
        self.value = float(value)
        self.dynamic = dynamic
        self.skipped = 0
        self._good = 0
        self._bad = 0  # steps in a row

    @classmethod
    def of(cls, option: str | float | None) -> LossScale:
        """The scale that a user asks for: `dynamic`, a number (or its text), None for 1.

        Raises ArgumentError.
        """
        value = fixed_scale(option)
        return cls(_FIRST, dynamic=True) if value is None else cls(value)

    def __repr__(self) -> str:
        """The option, not the present value: ranks and checkpoints compare it."""
        return f"LossScale({'dynamic' if self.dynamic else self.value})"

    def update(self, finite: bool) -> bool:
        """Record whether the gradients of a step were `finite` on all ranks; True: update."""
        self._good = self._good + 1 if finite else 0
        self._bad = 0 if finite else self._bad + 1
        self.skipped += not finite
        if self.dynamic and not finite:
            self.value = max(self.value / 2, _LEAST)
        elif self.dynamic and self._good == _PATIENCE:
            self.value = min(self.value * 2, _MOST)
            self._good = 0
        return bool(finite)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many steps in a row were skipped that no scale helps."""
        return self._bad >= HOPELESS

    def state(self) -> dict[str, float]:
        """What `restore` needs, as a dict that JSON can hold."""
        return {"value": self.value, "good": self._good, "skipped": self.skipped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`.

        A fixed scale keeps its value, so that a run can be resumed with another one.
        """
        self._good = state["good"]
        self.skipped = state["skipped"]
        if self.dynamic:
            self.value = min(max(state["value"], _LEAST), _MOST)


def clip_factor(norm: float, limit: float) -> float:
    """The factor, at most 1, that brings gradients of `norm` down to `limit`.

    See Pascanu, Mikolov and Bengio, 2013.

    An infinite norm gives 0 and nan gives nan: find out first, with the norm, whether the gradients
    are finite.

    >>> clip_factor(10.0, 2.5), clip_factor(2.0, 2.5), clip_factor(0.0, 2.5)
    (0.25, 1.0, 1.0)
    """
    check("limit", limit, number_of(limit) > 0, "a norm above 0")
    return 1.0 if norm <= limit else limit / norm


def squared_norm(array: Array) -> Any:
    """The sum of the squares of a 1-D floating array, in float64, on the array's device.

    Not finite where an element is not (or, in float64, its square); no warning then. One pass, no
    copy of the whole. On a device nobody waits for it until it is made a float.
    """
    total = 0.0
    with numpy.errstate(all="ignore"):
        for part in pieces(array):
            wide = array[part].astype("float64", copy=False)
            total = total + wide @ wide
    return total


#: bits of a square's whole number, twice, which leaves room for the sum of 2**31 of them
_SQUARE = 31


def whole_squares(array: Array, exponent: int) -> tuple[int, int]:
    """The sum of the squares of numbers below 2**exponent, as two integers.

    The second is in units 2**31 times as small.

    Sums of these are the same in whatever parts and order they are made; `square_of_words` makes a
    float of the last.
    """
    words = [0, 0]
    scale = 2.0**-exponent
    for part in pieces(array):
        wide = array[part].astype("float64") * scale
        wide = wide * wide * 2.0**_SQUARE
        for place in range(2):
            whole = wide.round()
            words[place] += int(whole.astype("int64").sum())
            wide = (wide - whole) * 2.0**_SQUARE
    return words[0], words[1]


def square_of_words(words: Sequence[int], exponent: int) -> float:
    """The sum that `whole_squares` stand for, rounded once."""
    with numpy.errstate(all="ignore"):  # it may be infinite
        return float(
            numpy.ldexp(
                float((int(words[0]) << _SQUARE) + int(words[1])), 2 * exponent - 2 * _SQUARE
            )
        )


def first_bad(array: Array) -> int | None:
    """The index of the first infinite or nan element of a 1-D array, or None."""
    for part in pieces(array):
        bad = ~module_of(array).isfinite(array[part])
        if bad.any():
            return int(part.start) + int(bad.argmax())
    return None
