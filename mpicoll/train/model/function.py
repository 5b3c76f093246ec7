"""A model given as a function, for any framework that computes on arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy
from numpy.typing import DTypeLike

from ...support.arrays import Array, module_of
from ...support.checks import check
from .hooks import Hooks
from .tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

#: arrays by name, or in order
Arrays: TypeAlias = Mapping[str, Any] | Sequence[Any]
#: (params, (features, labels)) -> (mean loss, gradients like params)
LossFunction: TypeAlias = Callable[[Any, tuple[Array, Array]], tuple[Any, Arrays]]


class _Arrays:
    """The one layer of such a model: its parameters, all needed together and ready together."""

    parameters: Sequence[Array] = ()
    gradients: Sequence[Array] = ()

    def __init__(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.shapes = shapes

    def bind(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        self.parameters, self.gradients = parameters, gradients


class FunctionModel:
    """Trains arrays by a function that computes a loss and its gradients.

    Nothing can be overlapped with backward here: gradients are there all at once.

    Parameters
    ----------
    function : callable
        ``function(params, (features, labels)) -> (loss, gradients)``: the mean loss over the rows of the batch, and the
        gradients of that mean, a dict or sequence like `params`. It is never called for an empty batch.
    params : dict or sequence of arrays
        All of one floating dtype, NumPy's or CuPy's; the function gets a dict or a list like it.

    Raises
    ------
    ArgumentError
        For params that cannot be trained, at once; for results of the function that do not fit them, in the first step.
    """

    #: what the function takes and gives is not known
    inputs: int | None = None
    outputs: int | None = None

    def __init__(self, function: LossFunction, params: Arrays) -> None:
        keyed = isinstance(params, Mapping)
        named = dict(params) if keyed else {f"array {number}": array for number, array in enumerate(params)}
        check("params", params, len(named) > 0, "at least one array")
        dtypes = {array.dtype for array in named.values()}
        check("params", dtypes, len(dtypes) == 1 and next(iter(dtypes)).kind == "f", "arrays of one floating dtype")
        self.function, self._keyed, self.names = function, keyed, list(named)
        self._module, self.gradients = module_of(next(iter(named.values()))), None
        self.layers = [_Arrays(tuple(array.shape for array in named.values()))]
        flat = [self._module.asarray(array).ravel() for array in named.values()]
        self._parameters: Array | None = self._module.concatenate(flat)

    def lend(self, read: Callable[[], Array]) -> None:
        """The arrays lie elsewhere now; `read()` gives a copy of all in order."""
        self._parameters, self._read = None, read

    @property
    def parameters(self) -> Array:
        """All parameters, one after the other."""
        return self._read() if self._parameters is None else self._parameters

    @property
    def tensors(self) -> list[Tensor]:
        """Name and shape of each array; all belong to layer 0."""
        return [Tensor(name, shape, 0) for name, shape in zip(self.names, self.layers[0].shapes)]

    def to(self, module: ModuleType | None = None, dtype: DTypeLike | None = None) -> Self:
        """Move to another array module or dtype."""
        self._module = module or self._module
        self._parameters = self._module.asarray(self.parameters, dtype=dtype or self.parameters.dtype)
        return self

    def describe(self) -> list[str]:
        """The arrays as text: what must be equal on all ranks."""
        return [f"{name} {shape}" for name, shape in zip(self.names, self.layers[0].shapes)]

    def backward_order(self) -> list[int]:
        """Layers in the order in which their gradients become ready."""
        return [0]

    def learn(self, features: Array, labels: Array, samples: int, hooks: Hooks = Hooks(), scale: float = 1.0) -> float:
        """Loss and gradients of these rows as their part of a batch of `samples` rows; see `Model.learn`."""
        layer, share = self.layers[0], len(labels) / samples
        hooks.forward(0)
        loss, gradients = self._call(layer.parameters, features, labels) if len(labels) else (0.0, None)
        hooks.backward(0)
        written: Sequence[Any] = gradients or [0.0] * len(layer.gradients)
        for target, gradient in zip(layer.gradients, written):
            target[...] = numpy.multiply(gradient, share * scale)
        hooks.ready(0)
        return float(loss) * share

    def _call(self, parameters: Sequence[Array], features: Array, labels: Array) -> tuple[Any, Sequence[Any]]:
        given = dict(zip(self.names, parameters)) if self._keyed else list(parameters)
        gradients: Any
        loss, gradients = self.function(given, (features, labels))
        expected = f"one for each of {', '.join(self.names)}"
        check("gradients", len(gradients), len(gradients) == len(self.names), expected)
        if self._keyed:
            check("gradients", list(gradients), set(gradients) == set(self.names), expected)
            gradients = [gradients[name] for name in self.names]
        for name, shape, gradient in zip(self.names, self.layers[0].shapes, gradients):
            check(f"gradient of {name}", numpy.shape(gradient), numpy.shape(gradient) == shape, f"the shape {shape}")
        check("loss", loss, math.prod(numpy.shape(loss)) == 1, "one number")
        return loss, gradients

    def count_correct(self, features: Array, labels: Array, rows: int = 4096, hooks: Hooks = Hooks()) -> None:
        """Unknown: the function gives no predictions."""
        return None
