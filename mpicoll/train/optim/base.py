"""The base of the optimizers, which update any slice of the parameters alone."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod

import numpy

from ...support.arrays import Array, module_of
from ...support.checks import check, check_integer, number_of, text_of
from .lr_schedules import Schedule

#: elements taken at a time: on the host the intermediate values of a formula then stay in the cache
#: (Adam on 10 million float32: 42 ms instead of 117 ms), on a device they stay small next to the
#: arrays
_PIECE = 1 << 15
_DEVICE_PIECE = 1 << 22


def pieces(array: Array) -> list[slice]:
    """Slices that cover the 1-D `array` in order, of a size that suits its memory.

    >>> list(pieces(numpy.zeros(40_000)))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    size = _piece_of(array)
    length = len(array)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _piece_of(array: Array) -> int:
    return _PIECE if module_of(array) is numpy else _DEVICE_PIECE


class Optimizer(ABC):
    """Base: hyper-parameters that print themselves, a learning rate per step, state arrays.

    A step is `update(parameters, gradients)`, or `advance()` and then `apply` for each part of the
    parameters.

    A subclass names its state arrays in `slots` and writes `_formula(parameters, gradients, one,
    two, *state)`, where `one` and `two` are scratch arrays like `parameters`. It calls NumPy's
    ufuncs, which other modules' arrays redirect.

    Parameters
    ----------
    lr : float
        The learning rate, above 0.
    schedule : callable, optional
        A function of the step, counted from 1, that gives a factor for the learning rate (see
        `lr_schedules`).

    Attributes
    ----------
    steps : int
        How many there have been.
    state : dict of str to ndarray
        For each of `slots` an array of the parameters' dtype and module, made by the first `apply`
        or by `allocate`. To go on from a checkpoint, set `steps` and `state`.
    owned : bool
        Whether a `Trainer` has it: no other one takes it then.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, lr: float, schedule: Schedule | None = None) -> None:
        check("lr", lr, 0 < number_of(lr) < math.inf, "a number above 0")
        check(
            "schedule",
            schedule,
            schedule is None or callable(schedule),
            "None or a function of the step",
        )
        self.lr = float(lr)
        self.schedule = schedule
        self.steps = 0
        self.state: dict[str, Array] = {}
        self.owned = False
        self._scratch: Array | None = None

    def __repr__(self) -> str:
        names = inspect.signature(type(self)).parameters
        values = ", ".join(f"{name}={_text(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({values})"

    @property
    def nbytes(self) -> int:
        """Bytes of the state arrays on this rank: 0 before they are made."""
        return sum(array.nbytes for array in self.state.values())

    @property
    def rate(self) -> float:
        """The learning rate of the present step; before the first one, that of the first."""
        return self.rate_of(max(1, self.steps))

    def rate_of(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self.lr if self.schedule is None else self.lr * float(self.schedule(step))

    def allocate(self, total: int, like: Array) -> None:
        """Make the state arrays, of zeros, unless they are there.

        Parameters
        ----------
        total : int
            Elements of the shard that this optimizer updates.
        like : ndarray
            An array of the dtype and module that they get.

        Raises
        ------
        ArgumentError
            If they are there for another number of elements.
        """
        check_integer("total", total, 0)
        for slot in self.slots:
            if slot not in self.state:
                self.state[slot] = module_of(like).zeros_like(like, shape=(total,))
            length = len(self.state[slot])
            check(
                "total",
                total,
                total == length,
                f"{length} elements, as the state has; use one optimizer per shard",
            )

    def advance(self) -> None:
        """Begin a step: count it, which sets its learning rate."""
        self.steps += 1

    def apply(
        self,
        parameters: Array,
        gradients: Array,
        start: int = 0,
        total: int | None = None,
        scale: float = 1.0,
    ) -> None:
        """Do the present step on a part of a shard, in one pass over memory.

        The result is the same, bit for bit, in however many parts a shard is updated.

        Parameters
        ----------
        parameters : ndarray of floats, shape (n,)
            Changed in place; the arithmetic is done in their dtype.
        gradients : ndarray of floats, shape (n,)
            On the same device; only read.
        start : int
            Where the part begins in the shard.
        total : int, optional
            Elements of the shard, by default n.
        scale : float
            A factor for the gradients.

        Raises
        ------
        ArgumentError
            Where the lengths do not fit, or before the first `advance`.
        """
        length = len(parameters)
        total = length if total is None else total
        # texts cost as much as a small step
        if gradients.shape != parameters.shape or not 0 <= start <= total - length:
            check(
                "gradients",
                gradients.shape,
                gradients.shape == parameters.shape,
                f"the shape {parameters.shape}",
            )
            check("start", start, False, f"0 to {total - length}: the part's place")
        check("steps", self.steps, self.steps > 0, "at least 1; call advance() before apply()")
        if any(slot not in self.state or len(self.state[slot]) != total for slot in self.slots):
            self.allocate(total, parameters)
        state = [self.state[slot][start : start + length] for slot in self.slots]
        scratch = self._scratch_like(parameters)
        for part in pieces(parameters):
            ours = parameters[part]
            spare, *rest = (
                scratch if len(ours) == len(scratch[0]) else [row[: len(ours)] for row in scratch]
            )
            gradient = _convert(gradients[part], float(scale), spare)
            self._formula(ours, gradient, *rest, *[array[part] for array in state])

    def update(self, parameters: Array, gradients: Array) -> None:
        """Do one step: `advance()`, then `apply` to the whole.

        Parameters
        ----------
        parameters, gradients : ndarray of floats, shape (n,)
            The parameters are changed in place.
        """
        self.advance()
        self.apply(parameters, gradients)

    @abstractmethod
    def _formula(
        self, parameters: Array, gradients: Array, one: Array, two: Array, *state: Array
    ) -> None:
        """Change `parameters` and `state` in place."""

    def _scratch_like(self, parameters: Array) -> list[Array]:
        """Three scratch arrays; kept, as page faults of new ones double a small update."""
        kept = self._scratch
        length = min(len(parameters), _piece_of(parameters))
        if (
            kept is None
            or kept.shape[1] < length
            or type(kept) is not type(parameters)
            or kept.dtype != parameters.dtype
        ):
            kept = self._scratch = module_of(parameters).zeros_like(parameters, shape=(3, length))
        return list(kept)


def _convert(gradients: Array, scale: float, out: Array) -> Array:
    """The gradients in the dtype of `out`, times `scale`: in `out` if that changes them."""
    if gradients.dtype != out.dtype:
        out[...] = gradients
        gradients = out
    return gradients if scale == 1.0 else numpy.multiply(gradients, scale, out=out)


def _text(value: object) -> str:
    """The repr of a hyper-parameter; the name of a function, since ranks compare it."""
    # from Python 3.14 on a `partial` counts as a routine, and has no such name
    if inspect.isroutine(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return text_of(value)
