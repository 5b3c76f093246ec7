"""The model: layers one after the other, whose parameters and gradients lie in two flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy
from numpy.typing import DTypeLike

from ...support.arrays import Array, module_of
from ...support.checks import check, check_integer, text_of
from .layers import Layer, Linear, ReLU, cross_entropy
from .parts import Hooks, Lendable, Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


class Model(Lendable):
    """A chain of layers whose parameters and gradients are views into flat arrays.

    A trainer gives the layers views into buffers of its own: `parameters` then is a copy, and
    `gradients` is None.

    Parameters
    ----------
    layers : sequence of Linear and ReLU
        At least one `Linear`; each an object of its own.
    seed : int
        Of the first parameters: the same one gives the same on every rank.
    dtype : {"float32", "float64"}
        Of parameters and gradients.

    Attributes
    ----------
    parameters : ndarray, shape (number of parameters,)
        All of them in forward order, weights before biases; contiguous.
    gradients : ndarray or None
        Like `parameters`.

    Raises
    ------
    ArgumentError
        Where there is no `Linear` among the layers, or one of them occurs twice.

    Examples
    --------
    >>> Model([Linear(64, 32), ReLU(), Linear(32, 10)], seed=1).describe()
    ['Linear(64, 32)', 'ReLU()', 'Linear(32, 10)']
    """

    def __init__(
        self, layers: Iterable[Layer], seed: int = 0, dtype: DTypeLike = "float32"
    ) -> None:
        self.layers = list(layers)
        check_integer("seed", seed, 0)
        check(
            "layers",
            self.layers,
            any(isinstance(layer, Linear) for layer in self.layers),
            "at least one Linear",
        )
        check(
            "layers",
            self.layers,
            len(set(map(id, self.layers))) == len(self.layers),
            "an object of its own in each place: a layer keeps what its last forward leaves",
        )
        random = numpy.random.default_rng(seed)
        values = [value.ravel() for layer in self.layers for value in layer.initialize(random)]
        self._use(numpy.concatenate(values).astype(dtype))

    def _use(self, parameters: Array) -> None:
        """Adopt a flat array of parameters, make gradients like it, and give layers their views."""
        gradients: Array = module_of(parameters).zeros_like(parameters)
        self._parameters = parameters
        self.gradients = gradients
        start = 0
        for layer in self.layers:
            stop = start + sum(math.prod(shape) for shape in layer.shapes)
            layer.bind(
                *(_views(flat[start:stop], layer.shapes) for flat in (parameters, gradients))
            )
            start = stop

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters in forward order: (name, shape, layer) of each."""
        return [
            Tensor(f"{kind} of layer {number}, {text_of(layer)}", shape, number)
            for number, layer in enumerate(self.layers)
            for kind, shape in zip(_kinds(len(layer.shapes)), layer.shapes)
        ]

    def to(self, module: ModuleType | None = None, dtype: DTypeLike | None = None) -> Self:
        """Move to another array module or dtype, in place. Views taken before are stale.

        Parameters
        ----------
        module : module, optional
            ``numpy`` or ``cupy``; by default that of the parameters.
        dtype : dtype, optional
            float32 or float64; by default that of the parameters.

        Returns
        -------
        Model
            Itself.
        """
        module = module or module_of(self.parameters)
        self._use(module.array(self.parameters, dtype=dtype or self.parameters.dtype))
        return self

    @property
    def inputs(self) -> int | None:
        """Width of the features it takes; None where the first layer does not say."""
        return _width(self.layers, "inputs")

    @property
    def outputs(self) -> int | None:
        """Number of logits, one per class; None where the last layer does not say."""
        return _width(reversed(self.layers), "outputs")

    def describe(self) -> list[str]:
        """The layers as text, one each: what must be equal on all ranks."""
        return [text_of(layer) for layer in self.layers]

    def forward(self, features: Array, hooks: Hooks | None = None) -> Array:
        """What the model says of some samples.

        Parameters
        ----------
        features : ndarray, shape (samples, inputs)
        hooks : Hooks, optional
            Called before each layer; by default those of the trainer that has the model, with which
            each layer waits for its parameters.

        Returns
        -------
        ndarray, shape (samples, classes)
            Logits: the class of a sample is where they are largest.
        """
        hooks = hooks or self._hooks
        for number, layer in enumerate(self.layers):
            hooks.forward(number)
            features = layer.forward(features)
        return features

    def backward(self, gradient: Array, hooks: Hooks = Hooks()) -> None:
        """Write the parameters' gradients.

        Parameters
        ----------
        gradient : ndarray, shape (samples, classes)
            That of the logits that `forward` returned last.
        hooks : Hooks
            Called around each layer.
        """
        upstream: Array | None = gradient
        for number, layer in reversed(list(enumerate(self.layers))):
            hooks.backward(number)
            assert upstream is not None  # only the first layer returns none
            upstream = layer.backward(upstream, first=number == 0)
            hooks.ready(number)

    def learn(
        self,
        features: Array,
        labels: Array,
        samples: int,
        hooks: Hooks = Hooks(),
        scale: float = 1.0,
    ) -> float:
        """Compute the loss and the gradients of these rows as their part of a batch.

        The sum of the parts over the ranks is the mean over the batch, whatever the split; a rank
        without rows contributes zeros.

        Parameters
        ----------
        features : ndarray, shape (rows, inputs)
        labels : ndarray of integers, shape (rows,)
        samples : int
            Of the whole batch, on all ranks.
        hooks : Hooks
            Called around each layer.
        scale : float
            A factor for the gradients, which are written where the layers have them.

        Returns
        -------
        float
            This part of the batch's mean softmax cross-entropy.
        """
        if len(labels) == 0:  # without `ready` a reducer sends zeros
            for number in range(len(self.layers)):
                hooks.forward(number)
            if self.gradients is not None:
                self.gradients.fill(0)
            return 0.0
        loss, gradient = cross_entropy(self.forward(features, hooks), labels, samples)
        self.backward(gradient if scale == 1.0 else gradient * gradient.dtype.type(scale), hooks)
        # only now: a device must not wait for the host between forward and backward
        return float(loss)

    def backward_order(self) -> list[int]:
        """Layers in the order in which backward finishes them."""
        return list(reversed(range(len(self.layers))))

    def count_correct(
        self, features: Array, labels: Array, rows: int = 4096, hooks: Hooks | None = None
    ) -> int:
        """How many of these samples get the right label.

        Parameters
        ----------
        features : ndarray, shape (samples, inputs)
        labels : ndarray of integers, shape (samples,)
        rows : int
            Samples at a time, which bounds the memory.
        hooks : Hooks, optional
            See `forward`.

        Returns
        -------
        int
        """
        parts = [slice(start, start + rows) for start in range(0, len(labels), rows)]
        return sum(
            int((self.forward(features[part], hooks).argmax(axis=1) == labels[part]).sum())
            for part in parts
        )


def _width(layers: Iterable[Layer], name: str) -> int | None:
    """`inputs` or `outputs` of the first layer that may change the width, if it has them."""
    layer = next(layer for layer in layers if not isinstance(layer, ReLU))
    width: int | None = getattr(layer, name, None)
    return width


def _kinds(count: int) -> list[str]:
    """Names of a layer's tensors: weights and biases if there are at most two."""
    return (
        ["weights", "biases"][:count]
        if count <= 2
        else [f"tensor {number}" for number in range(count)]
    )


def _views(flat: Array, shapes: Iterable[tuple[int, ...]]) -> list[Array]:
    """Consecutive pieces of a flat array, shaped."""
    views = []
    for shape in shapes:
        views.append(flat[: math.prod(shape)].reshape(shape))
        flat = flat[math.prod(shape) :]
    return views


def mlp(widths: Sequence[int], seed: int = 0, dtype: DTypeLike = "float32") -> Model:
    """A multi-layer perceptron: linear layers with ReLU between them.

    Parameters
    ----------
    widths : sequence of int
        Of the inputs, the hidden layers and the outputs: ``[64, 512, 10]`` has one hidden layer of
        512.
    seed : int
        Of the first weights: the same one gives the same on every rank.
    dtype : {"float32", "float64"}
        Of parameters and gradients.

    Returns
    -------
    Model

    Raises
    ------
    ArgumentError
        Where there are fewer than two widths, or one is not a whole number above 0.

    Examples
    --------
    >>> mlp([64, 32, 10]).parameters.size
    2410
    """
    check(
        "widths",
        widths,
        len(widths) >= 2,
        "inputs, hidden widths and outputs, such as [64, 512, 10]",
    )
    for width in widths:
        check_integer("widths", width, 1)
    layers: list[Layer] = [Linear(widths[0], widths[1])]
    for inputs, outputs in zip(widths[1:], widths[2:]):
        layers += [ReLU(), Linear(inputs, outputs)]
    return Model(layers, seed, dtype)
