"""Between a model and a reducer: layers get views of the flat buffers, and arrays to compute with where those are 16-bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from ...support.arrays import Array
from ..model import AnyModel, Hooks
from .reducer import Reducer


class ReducerHooks(Hooks):
    """Tells a `Reducer` what a model computes, and gives the model's layers their memory.

    compute: the dtype of the arithmetic. Where the flat buffers have it, layers compute on views of them; otherwise on copies
    that live while a layer computes.
    """

    def __init__(self, model: AnyModel, reducer: Reducer, compute: numpy.dtype[Any]) -> None:
        self.model, self.reducer, self.compute = model, reducer, compute
        self.direct = reducer.parameters.dtype == compute
        self.tensors: list[list[int]] = [[] for _ in model.layers]
        for number, tensor in enumerate(reducer.layout.tensors):
            self.tensors[tensor.layer].append(number)
        self._given: Sequence[Array] = ()
        self.rest()

    def rest(self) -> None:
        """Outside of steps every layer has its parameters, so that the user can compute with the model."""
        self.reducer.wait()
        for number, layer in enumerate(self.model.layers):
            layer.bind(self._parameters(number), ())

    def _parameters(self, layer: int) -> list[Array]:
        reducer = self.reducer
        views = [reducer.layout.view(reducer.parameters, number) for number in self.tensors[layer]]
        return views if self.direct else [view.astype(self.compute) for view in views]

    def forward(self, layer: int) -> None:
        """The layer is about to compute."""
        self.reducer.wait_for_layer(layer)
        if not self.direct:
            self.model.layers[layer].bind(self._parameters(layer), ())

    def backward(self, layer: int) -> None:
        """The layer is about to write its gradients."""
        reducer, numbers = self.reducer, self.tensors[layer]
        for number in numbers:
            reducer.acquire(number)
        views = [reducer.gradient(number) for number in numbers]
        if self.direct and reducer.fresh:
            self._given = views
        else:
            self._given = [reducer.module.empty(view.shape, self.compute) for view in views]
        self.model.layers[layer].bind(self._parameters(layer), self._given)

    def ready(self, layer: int) -> None:
        """The layer has written its gradients."""
        reducer = self.reducer
        for number, given in zip(self.tensors[layer], self._given):
            target = reducer.gradient(number)
            if not reducer.fresh:
                target[...] = target.astype(self.compute, copy=False) + given
            elif not self.direct:
                target[...] = given
            reducer.ready(number)
        if not self.direct:
            self.model.layers[layer].bind((), ())
