"""Optimizers on flat arrays: element by element, so any slice of the parameters can be updated alone."""

import inspect
import math

import numpy

from ...support.arrays import module_of
from ...support.checks import check, check_integer

#: elements taken at a time: on the host the intermediate values of a formula then stay in the cache (Adam on 10
#: million float32: 42 ms instead of 117 ms), on a device they stay small next to the arrays
_PIECE, _DEVICE_PIECE = 1 << 15, 1 << 22


def pieces(array):
    """Slices that cover the one-dimensional `array` in order, each but the last of a size that suits its memory.

    >>> list(pieces(numpy.zeros(40_000)))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    size, length = _PIECE if module_of(array) is numpy else _DEVICE_PIECE, len(array)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


class Optimizer:
    """Base: hyper-parameters that print themselves, a learning rate for each step, and state arrays.

    A step is `update(parameters, gradients)`, or `advance()` and then `apply` for each part of the parameters.
    lr: the learning rate; schedule: a function of the step, counted from 1, that gives a factor for it (see
    `schedules`; None: 1). `steps` counts the steps so far; `state` maps each of `slots` to an array of the parameters'
    dtype and module, made by the first `apply` or by `allocate`. To go on from a checkpoint, set `steps` and `state`.

    A subclass names its state arrays in `slots` and writes `_formula(parameters, gradients, one, two, *state)`, where
    `one` and `two` are scratch arrays like `parameters`. It calls NumPy's ufuncs, which other modules' arrays redirect.
    """

    slots = ()

    def __init__(self, lr, schedule=None):
        check("lr", lr, 0 < lr < math.inf, "a number above 0")
        check("schedule", schedule, schedule is None or callable(schedule), "None or a function of the step")
        self.lr, self.schedule, self.steps, self.state, self._scratch = float(lr), schedule, 0, {}, None

    def __repr__(self):
        names = inspect.signature(type(self)).parameters
        return f"{type(self).__name__}({', '.join(f'{name}={_text(getattr(self, name))}' for name in names)})"

    @property
    def nbytes(self):
        """Bytes of the state arrays on this rank: 0 before they are made."""
        return sum(array.nbytes for array in self.state.values())

    @property
    def rate(self):
        """The learning rate of the present step; before the first one, that of the first."""
        return self.lr if self.schedule is None else self.lr * float(self.schedule(max(1, self.steps)))

    def allocate(self, total, like):
        """Make the state, zeros for `total` elements of the dtype and module of the array `like`, if it is not there.

        Raises ArgumentError if it is there for another number of elements.
        """
        check_integer("total", total, 0)
        for slot in self.slots:
            if slot not in self.state:
                self.state[slot] = module_of(like).zeros_like(like, shape=(total,))
            length = len(self.state[slot])
            check("total", total, total == length, f"{length} elements, as the state has; use one optimizer per shard")

    def advance(self):
        """Begin a step: count it, which sets its learning rate."""
        self.steps += 1

    def apply(self, parameters, gradients, start=0, total=None, scale=1.0):
        """Do the present step on `parameters`, n elements from `start` of a shard of `total` (default: n), in place.

        Both arrays are one-dimensional, of n elements on one device; `gradients` are only read, are multiplied by
        `scale`, and may have another dtype: the arithmetic is done in that of `parameters`. The result is the same, bit
        for bit, in however many parts a shard is updated. One pass over memory.
        Raises ArgumentError where the lengths do not fit, or before the first `advance`.
        """
        total = len(parameters) if total is None else total
        check("gradients", gradients.shape, gradients.shape == parameters.shape, f"the shape {parameters.shape}")
        check("start", start, 0 <= start <= total - len(parameters), f"0 to {total - len(parameters)}: the part's place")
        check("steps", self.steps, self.steps > 0, "at least 1; call advance() before apply()")
        self.allocate(total, parameters)
        state = [self.state[slot][start:start + len(parameters)] for slot in self.slots]
        scratch = self._scratch_like(parameters)
        for part in pieces(parameters):
            ours = parameters[part]
            spare, *rest = scratch if len(ours) == len(scratch[0]) else [row[:len(ours)] for row in scratch]
            gradient = _convert(gradients[part], float(scale), spare)
            self._formula(ours, gradient, *rest, *[array[part] for array in state])

    def update(self, parameters, gradients):
        """Change `parameters` in place by one step: `advance()`, then `apply` to the whole."""
        self.advance()
        self.apply(parameters, gradients)

    def _scratch_like(self, parameters):
        """Three arrays for one of the `pieces`; kept, because the page faults of fresh ones double a small update."""
        length = max((part.stop - part.start for part in pieces(parameters)[:1]), default=0)
        kept, module = self._scratch, module_of(parameters)
        if kept is None or kept.shape[1] < length or (module_of(kept), kept.dtype) != (module, parameters.dtype):
            self._scratch = module.zeros_like(parameters, shape=(3, length))
        return list(self._scratch)


class SGD(Optimizer):
    """Stochastic gradient descent: v = momentum v + g; p -= lr v (nesterov: p -= lr (g + momentum v)).

    weight_decay w adds w p to the gradient. State: one array, with momentum only.
    """

    def __init__(self, lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, *, schedule=None):
        super().__init__(lr, schedule)
        check("momentum", momentum, 0 <= momentum < 1, "a number from 0 to below 1")
        check("nesterov", nesterov, momentum > 0 or not nesterov, "False where momentum is 0")
        check("weight_decay", weight_decay, 0 <= weight_decay < math.inf, "a number of at least 0")
        self.momentum, self.nesterov, self.weight_decay = float(momentum), bool(nesterov), float(weight_decay)
        self.slots = ("velocity",) if momentum else ()

    def _formula(self, parameters, gradients, one, two, velocity=None):
        if self.weight_decay:
            gradients = _add(gradients, self.weight_decay, parameters, one)
        if velocity is not None:
            velocity *= self.momentum
            velocity += gradients
            gradients = _add(gradients, self.momentum, velocity, two) if self.nesterov else velocity
        parameters -= numpy.multiply(gradients, self.rate, out=one)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) with bias correction; weight_decay w adds w p to the gradient.

    State: two arrays, the running means of the gradients and of their squares.
    """

    slots = ("mean", "square")

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, schedule=None):
        super().__init__(lr, schedule)
        check("betas", betas, len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "two numbers from 0 to below 1")
        check("eps", eps, 0 < eps < math.inf, "a number above 0")
        check("weight_decay", weight_decay, 0 <= weight_decay < math.inf, "a number of at least 0")
        self.betas, self.eps, self.weight_decay = tuple(map(float, betas)), float(eps), float(weight_decay)

    def _formula(self, parameters, gradients, one, two, mean, square):
        gradients = self._decay(parameters, gradients, one)
        first, second = self.betas
        mean *= first
        mean += numpy.multiply(gradients, 1 - first, out=two)
        square *= second
        numpy.multiply(gradients, gradients, out=two)
        two *= 1 - second
        square += two
        # both bias corrections act on scalars (the form that closes section 2 of the paper): two passes fewer
        correction = math.sqrt(1 - second**self.steps)
        numpy.sqrt(square, out=one)
        one += self.eps * correction
        numpy.divide(mean, one, out=one)
        one *= self.rate * correction / (1 - first**self.steps)
        parameters -= one

    def _decay(self, parameters, gradients, out):
        return _add(gradients, self.weight_decay, parameters, out) if self.weight_decay else gradients


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p *= 1 - lr w before the step."""

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, schedule=None):
        super().__init__(lr, betas, eps, weight_decay, schedule=schedule)

    def _decay(self, parameters, gradients, out):
        if self.weight_decay:
            parameters *= 1 - self.rate * self.weight_decay
        return gradients


def _convert(gradients, scale, out):
    """The gradients in the dtype of `out`, times `scale`: in `out` if that changes them."""
    if gradients.dtype != out.dtype:
        out[...] = gradients
        gradients = out
    return gradients if scale == 1.0 else numpy.multiply(gradients, scale, out=out)


def _add(array, factor, other, out):
    """array + factor other, in `out`."""
    numpy.multiply(other, factor, out=out)
    out += array
    return out


def _text(value):
    """The repr of a hyper-parameter; of a function its name, because ranks and checkpoints compare it."""
    return f"{value.__module__}.{value.__qualname__}" if inspect.isroutine(value) else repr(value)


#: the command line's words
OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
