"""Optimizers on flat arrays: SGD, Adam and AdamW."""

from __future__ import annotations

import math

import numpy

from ...support.arrays import Array
from ...support.checks import check, number_of
from .base import Optimizer
from .lr_schedules import Schedule


class SGD(Optimizer):
    """Stochastic gradient descent: v = momentum v + g; p -= lr v (nesterov: p -= lr (g + momentum
    v)).

    State: one array of the parameters' size, with momentum only.

    Parameters
    ----------
    lr : float
        The learning rate, above 0.
    momentum : float
        From 0 to below 1.
    nesterov : bool
        Whether to look ahead; it needs momentum.
    weight_decay : float
        w adds w p to the gradient.
    schedule : callable, optional
        A function of the step, counted from 1, that gives a factor for the learning rate.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.

    Examples
    --------
    >>> p = numpy.array([1.0, 2.0])
    >>> SGD(lr=0.5).update(p, numpy.array([1.0, -1.0]))
    >>> p.tolist()
    [0.5, 2.5]
    """

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(lr, schedule)
        check("momentum", momentum, 0 <= number_of(momentum) < 1, "a number from 0 to below 1")
        check("nesterov", nesterov, momentum > 0 or not nesterov, "False where momentum is 0")
        _check_decay(weight_decay)
        self.momentum = float(momentum)
        self.nesterov = bool(nesterov)
        self.weight_decay = float(weight_decay)
        self.slots = ("velocity",) if momentum else ()

    def _formula(
        self, parameters: Array, gradients: Array, one: Array, two: Array, *state: Array
    ) -> None:
        if self.weight_decay:
            gradients = _add(gradients, self.weight_decay, parameters, one)
        for velocity in state:  # none without momentum
            velocity *= self.momentum
            velocity += gradients
            gradients = _add(gradients, self.momentum, velocity, two) if self.nesterov else velocity
        parameters -= numpy.multiply(gradients, self.rate, out=one)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) with bias correction.

    State: two arrays of the parameters' size, the running means of the gradients and of their
    squares.

    Parameters
    ----------
    lr : float
        The learning rate, above 0.
    betas : (float, float)
        How much of the two means stays in a step, from 0 to below 1.
    eps : float
        Added to the root of the mean square, above 0.
    weight_decay : float
        w adds w p to the gradient.
    schedule : callable, optional
        A function of the step, counted from 1, that gives a factor for the learning rate.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.
    """

    slots = ("mean", "square")

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(lr, schedule)
        check(
            "betas",
            betas,
            hasattr(betas, "__len__")
            and len(betas) == 2
            and all(0 <= number_of(beta) < 1 for beta in betas),
            "two numbers from 0 to below 1",
        )
        check("eps", eps, 0 < number_of(eps) < math.inf, "a number above 0")
        _check_decay(weight_decay)
        self.betas = tuple(map(float, betas))
        self.eps = float(eps)
        self.weight_decay = float(weight_decay)

    def _formula(
        self, parameters: Array, gradients: Array, one: Array, two: Array, *state: Array
    ) -> None:
        gradients = self._decay(parameters, gradients, one)
        (mean, square), (first, second) = state, self.betas
        mean *= first
        mean += numpy.multiply(gradients, 1 - first, out=two)
        square *= second
        numpy.multiply(gradients, gradients, out=two)
        two *= 1 - second
        square += two
        # both bias corrections act on scalars (the form that closes section 2 of the paper): two
        # passes fewer
        correction = math.sqrt(1 - second**self.steps)
        numpy.sqrt(square, out=one)
        one += self.eps * correction
        numpy.divide(mean, one, out=one)
        one *= self.rate * correction / (1 - first**self.steps)
        parameters -= one

    def _decay(self, parameters: Array, gradients: Array, out: Array) -> Array:
        return (
            _add(gradients, self.weight_decay, parameters, out) if self.weight_decay else gradients
        )


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p *= 1 - lr w before the
    step.

    Parameters
    ----------
    lr, betas, eps, schedule
        As of `Adam`.
    weight_decay : float
        The w above.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, schedule=schedule)

    def _decay(self, parameters: Array, gradients: Array, out: Array) -> Array:
        if self.weight_decay:
            parameters *= 1 - self.rate * self.weight_decay
        return gradients


def _check_decay(weight_decay: float) -> None:
    good = 0 <= number_of(weight_decay) < math.inf
    check("weight_decay", weight_decay, good, "a number of at least 0")


def _add(array: Array, factor: float, other: Array, out: Array) -> Array:
    """array + factor other, in `out`."""
    numpy.multiply(other, factor, out=out)
    out += array
    return out


#: by their names on the command line
OPTIMIZERS: dict[str, type[SGD | Adam]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
