"""What models have in common: named tensors, hooks around layers, and parameters that are lent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ...support.arrays import Array
from ...support.checks import check


class Tensor(NamedTuple):
    """A parameter of the model: name, shape, and the number of the layer that needs it."""

    name: str
    shape: tuple[int, ...]
    layer: int

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


class Hooks:
    """Base, by which nothing happens. Layers are counted from 0, in forward order."""

    def forward(self, layer: int) -> None:
        """It is about to compute its values."""

    def backward(self, layer: int) -> None:
        """It is about to write its gradients."""

    def ready(self, layer: int) -> None:
        """Its gradients are written."""


class Lendable:
    """Base of the models: flat parameters, until a trainer places them elsewhere."""

    #: None where a trainer has them
    _parameters: Array | None
    gradients: Array | None

    def lend(self, read: Callable[[], Array], hooks: Hooks | None = None) -> None:
        """The layers get other views now; `read()` gives a copy of all parameters.

        hooks: bring a layer its parameters before it computes.
        """
        self._parameters = None
        self.gradients = None
        self._read = read
        self._lent_hooks = hooks

    @property
    def _hooks(self) -> Hooks:
        """What `forward` calls where it is given no hooks."""
        return (self._lent_hooks if self.is_lent else None) or Hooks()

    @property
    def is_lent(self) -> bool:
        """Whether its parameters lie in the buffers of a trainer."""
        return self._parameters is None

    def is_lent_by(self, read: Callable[[], Array]) -> bool:
        """Whether `lend` was called last with this function."""
        return self.is_lent and self._read == read

    @property
    def parameters(self) -> Array:
        """All parameters in the order of `tensors`."""
        return self._read() if self._parameters is None else self._parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        """For `model.parameters += …`."""
        own = self._parameters
        expected = "a model that no trainer has taken over"
        check("parameters", "those in its buffers", own is not None, expected)
        assert own is not None
        own[...] = values
