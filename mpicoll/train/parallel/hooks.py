"""Between a model and a reducer: layers get views of the flat buffers.

With 16-bit buffers they get arrays to compute with.
"""

from __future__ import annotations

from typing import Any

import numpy

from ...support.arrays import Array
from ..model import AnyModel, Hooks
from .reducer import Reducer


class ReducerHooks(Hooks):
    """Tells a `Reducer` what a model computes, and gives the model's layers their memory.

    compute: the dtype of the arithmetic. Where the flat buffers have it, layers compute on views of
    them; otherwise on copies that live while a layer computes.
    """

    def __init__(self, model: AnyModel, reducer: Reducer, compute: numpy.dtype[Any]) -> None:
        self.layers = model.layers  # not the model, which refers to these hooks
        self.reducer = reducer
        self.compute = compute
        self.direct = reducer.parameters.dtype == compute
        self.tensors: list[list[int]] = [[] for _ in model.layers]
        for number, tensor in enumerate(reducer.layout.tensors):
            self.tensors[tensor.layer].append(number)
        layout = reducer.layout
        flat = reducer.parameters
        self._views = [
            [layout.view(flat, number) for number in numbers] for numbers in self.tensors
        ]
        self._gradients: list[Array] = []
        self.rest()

    def rest(self) -> None:
        """Bind every layer to its parameters, so that the user can compute with the model."""
        self.reducer.wait()
        for number in range(len(self.layers)):
            self.layers[number].bind(self._parameters(number), ())

    def _parameters(self, layer: int) -> list[Array]:
        views = self._views[layer]
        return views if self.direct else [view.astype(self.compute) for view in views]

    def forward(self, layer: int) -> None:
        """The layer is about to compute."""
        self.reducer.wait_for_layer(layer)
        if not self.direct:
            self.layers[layer].bind(self._parameters(layer), ())

    def backward(self, layer: int) -> None:
        """The layer is about to write its gradients.

        It gets the memory of the reducer, or where that is not free, or not of its dtype, temporary
        arrays. A layer that does not say that it overwrites all of its gradients gets zeros.
        """
        target = self.layers[layer]
        self._gradients = [self._gradient(number) for number in self.tensors[layer]]
        if not getattr(target, "overwrites", False):
            for gradient in self._gradients:
                gradient.fill(0)
        target.bind(self._parameters(layer), list(self._gradients))

    def _gradient(self, number: int) -> Array:
        """Where a layer writes the gradient of this tensor."""
        reducer = self.reducer
        lent = reducer.lend(number) if self.direct else None
        if lent is not None:
            return lent
        empty: Array = reducer.module.empty(reducer.layout.tensors[number].shape, self.compute)
        return empty

    def ready(self, layer: int) -> None:
        """The layer has written its gradients."""
        for number, gradient in zip(self.tensors[layer], self._gradients):
            self.reducer.ready(number, gradient)
        if not self.direct:
            self.layers[layer].bind((), ())
