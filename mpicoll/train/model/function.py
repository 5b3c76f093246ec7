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
from .parts import Hooks, Lendable, Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

#: arrays by name, or in order
Arrays: TypeAlias = Mapping[str, Any] | Sequence[Any]
#: (params, (features, labels)) -> (mean loss, gradients like params)
LossFunction: TypeAlias = Callable[[Any, tuple[Array, Array]], tuple[Any, Arrays]]


class _Parameter:
    """A layer of such a model: one array.

    Its gradient is written when the function has returned all of them.
    """

    parameters: Sequence[Array] = ()
    gradients: Sequence[Array] = ()
    overwrites = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def bind(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        self.parameters = parameters
        self.gradients = gradients


class FunctionModel(Lendable):
    """Trains arrays by a function that computes a loss and its gradients.

    Nothing can be overlapped with backward here: gradients are there all at once.

    Parameters
    ----------
    function : callable
        ``function(params, (features, labels)) -> (loss, gradients)``: the mean loss over the rows
        of the batch, and the gradients of that mean, a dict or sequence like `params`. It is never
        called for an empty batch.
    params : dict or sequence of arrays
        All of one floating dtype, NumPy's or CuPy's; the function gets a dict or a list like it.

    Raises
    ------
    ArgumentError
        For params that cannot be trained, at once; for results of the function that do not fit
        them, in the first step.
    """

    #: what the function takes and gives is not known
    inputs: int | None = None
    outputs: int | None = None

    def __init__(self, function: LossFunction, params: Arrays) -> None:
        keyed = isinstance(params, Mapping)
        listed = keyed or isinstance(params, Sequence)
        check("params", params, listed, "a dict or a sequence of arrays")
        named = (
            dict(params)
            if keyed
            else {f"array {number}": array for number, array in enumerate(params)}
        )
        check("params", params, len(named) > 0, "at least one array")
        are_texts = all(isinstance(name, str) for name in named)
        check("params", list(named), are_texts, "texts as the keys of a dict")
        for name, array in named.items():
            check(
                f"params: {name}",
                array,
                hasattr(array, "dtype") and hasattr(array, "shape"),
                "an array",
            )
        dtypes = {array.dtype for array in named.values()}
        check(
            "params",
            dtypes,
            len(dtypes) == 1 and next(iter(dtypes)).kind == "f",
            "arrays of one floating dtype",
        )
        self.function = function
        self._keyed = keyed
        self.names = list(named)
        self._module = module_of(next(iter(named.values())))
        self.gradients = None
        self.layers = [_Parameter(array.shape) for array in named.values()]
        flat = [self._module.asarray(array).ravel() for array in named.values()]
        self._parameters = self._module.concatenate(flat)

    @property
    def tensors(self) -> list[Tensor]:
        """Name and shape of each array, which is a layer of its own."""
        return [
            Tensor(name, layer.shape, number)
            for number, (name, layer) in enumerate(zip(self.names, self.layers))
        ]

    def to(self, module: ModuleType | None = None, dtype: DTypeLike | None = None) -> Self:
        """Move to another array module or dtype."""
        self._module = module or self._module
        self._parameters = self._module.asarray(
            self.parameters, dtype=dtype or self.parameters.dtype
        )
        return self

    def describe(self) -> list[str]:
        """The arrays as text: what must be equal on all ranks."""
        return [f"{name} {layer.shape}" for name, layer in zip(self.names, self.layers)]

    def backward_order(self) -> list[int]:
        """Layers in the order in which their gradients become ready."""
        return list(range(len(self.layers)))

    def learn(
        self,
        features: Array,
        labels: Array,
        samples: int,
        hooks: Hooks = Hooks(),
        scale: float = 1.0,
    ) -> float:
        """Loss and gradients of these rows as their part of a batch; see `Model.learn`."""
        share = len(labels) / samples
        for number in range(len(self.layers)):
            hooks.forward(number)
        if len(labels) == 0:  # without `ready` a reducer sends zeros
            return 0.0
        parameters = [layer.parameters[0] for layer in self.layers]
        loss, gradients = self._call(parameters, features, labels)
        for number, (layer, gradient) in enumerate(zip(self.layers, gradients)):
            hooks.backward(number)
            layer.gradients[0][...] = numpy.multiply(gradient, share * scale)
            hooks.ready(number)
        return float(loss) * share

    def _call(
        self, parameters: Sequence[Array], features: Array, labels: Array
    ) -> tuple[Any, Sequence[Any]]:
        given = dict(zip(self.names, parameters)) if self._keyed else list(parameters)
        result: Any = self.function(given, (features, labels))
        pair = isinstance(result, (tuple, list)) and len(result) == 2
        check("what the function returns", result, pair, "(loss, gradients)")
        loss, gradients = result
        check(
            "gradients", gradients, hasattr(gradients, "__len__"), "a dict or sequence like params"
        )
        expected = f"one for each of {', '.join(self.names)}"
        check("gradients", len(gradients), len(gradients) == len(self.names), expected)
        if self._keyed:
            check("gradients", list(gradients), set(gradients) == set(self.names), expected)
            gradients = [gradients[name] for name in self.names]
        for name, layer, gradient in zip(self.names, self.layers, gradients):
            found = numpy.shape(gradient)
            check(f"gradient of {name}", found, found == layer.shape, f"the shape {layer.shape}")
        check("loss", loss, math.prod(numpy.shape(loss)) == 1, "one number")
        return loss, gradients

    def count_correct(
        self, features: Array, labels: Array, rows: int = 4096, hooks: Hooks | None = None
    ) -> None:
        """Unknown: the function gives no predictions."""
        return None
