"""Layers with explicit backward passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy

from ...support.arrays import Array, module_of


class Layer(Protocol):
    """A step of the computation.

    The model gives it views into flat arrays, shaped as `shapes`, by `bind`.
    """

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of its parameters."""
        ...

    def initialize(self, random: numpy.random.Generator) -> Sequence[Array]:
        """First values of the parameters."""
        ...

    def bind(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Use these arrays from now on."""

    def forward(self, x: Array) -> Array:
        """Values for x of shape (samples, inputs); what `backward` needs is kept."""
        ...

    def backward(self, dy: Array, first: bool = False) -> Array | None:
        """Write the parameters' gradients; return the gradient of x, or None where nobody needs it
        (`first`).

        It overwrites, so there is one call per forward; what it leaves out is zero. A class that
        has `overwrites = True` says that it leaves nothing out, and is not given zeros.
        """


class Linear:
    """The layer y = x W + b.

    Parameters
    ----------
    inputs, outputs : int
        x has the shape (samples, inputs), y (samples, outputs), W (inputs, outputs) and b
        (outputs,).
    """

    parameters: Sequence[Array]
    gradients: Sequence[Array]
    #: `backward` writes every element of its gradients: they need no zeros before
    overwrites = True

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.shapes: tuple[tuple[int, ...], ...] = ((inputs, outputs), (outputs,))

    def __repr__(self) -> str:
        return f"Linear({self.inputs}, {self.outputs})"

    def initialize(self, random: numpy.random.Generator) -> tuple[Array, Array]:
        """First weights and biases, float64: He's normal weights, for a ReLU, and zeros."""
        return random.standard_normal(self.shapes[0]) * math.sqrt(2 / self.inputs), numpy.zeros(
            self.outputs
        )

    def bind(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Use these arrays (shaped as `shapes`; weights, biases) from now on."""
        self.parameters = parameters
        self.gradients = gradients

    def forward(self, x: Array) -> Array:
        """Values for x; x is kept for `backward`.

        Parameters
        ----------
        x : ndarray, shape (samples, inputs)

        Returns
        -------
        ndarray, shape (samples, outputs)
        """
        self._x, (weight, bias) = x, self.parameters
        y: Array = x @ weight
        y += bias
        return y

    def backward(self, dy: Array, first: bool = False) -> Array | None:
        """Overwrite the parameters' gradients: one call per forward.

        Parameters
        ----------
        dy : ndarray, shape (samples, outputs)
            The gradient of the values that `forward` returned last.
        first : bool
            Whether nobody needs the gradient of x.

        Returns
        -------
        ndarray, shape (samples, inputs), or None
            The gradient of x.
        """
        weights, biases = self.gradients
        module_of(dy).matmul(self._x.T, dy, out=weights)
        dy.sum(axis=0, out=biases)
        if first:
            return None
        dx: Array = dy @ self.parameters[0].T
        return dx


class ReLU:
    """The layer y = max(x, 0), with derivative 0 at 0; no parameters."""

    shapes: tuple[tuple[int, ...], ...] = ()
    gradients: Sequence[Array] = ()

    def __repr__(self) -> str:
        return "ReLU()"

    def initialize(self, random: numpy.random.Generator) -> tuple[Array, ...]:
        """No parameters, no values."""
        return ()

    def bind(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """No parameters, nothing to bind."""

    def forward(self, x: Array) -> Array:
        """Values for x, of its shape; their sign is kept for `backward`."""
        self._positive = x > 0
        y: Array = x * self._positive
        return y

    def backward(self, dy: Array, first: bool = False) -> Array:
        """The gradient of x."""
        dx: Array = dy * self._positive
        return dx


def cross_entropy(logits: Array, labels: Array, samples: int) -> tuple[Any, Array]:
    """Softmax cross-entropy summed over the rows and divided by `samples`, and its gradient.

    logits: (rows, classes); labels: (rows,) integers; samples: size of the whole batch of which
    these rows are a part. Returns (loss, gradient of the logits' shape and dtype). The loss is
    summed in float64; on a device nobody waits for it until it is made a float.
    """
    module = module_of(logits)
    rows = module.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    gradient: Array = module.exp(shifted)
    sums = gradient.sum(axis=1, keepdims=True)
    loss = (module.log(sums[:, 0]) - shifted[rows, labels]).sum(dtype="float64")
    gradient /= sums
    gradient[rows, labels] -= 1
    gradient /= samples
    return loss / samples, gradient
