"""A model given as a function, for any framework that computes on arrays."""

import math

import numpy

from ...support.arrays import module_of
from ...support.checks import check
from .layers import Hooks
from .tensor import Tensor


class _Arrays:
    """The one layer of such a model: its parameters, all needed together and ready together."""

    def __init__(self, shapes):
        self.shapes, self.parameters, self.gradients = shapes, (), ()

    def bind(self, parameters, gradients):
        self.parameters, self.gradients = parameters, gradients


class FunctionModel:
    """Trains the arrays `params` by `function(params, (features, labels)) -> (loss, gradients)`.

    params: a dict of arrays by name, or a sequence of arrays, all of one floating dtype; the function gets a dict or a list
    like it. loss: the mean over the rows of the batch; gradients: those of that mean, a dict or sequence like params. It is
    never called for an empty batch. Nothing can be overlapped with backward here: gradients are there all at once.
    """

    inputs = outputs = None

    def __init__(self, function, params):
        named = params if isinstance(params, dict) else {f"array {number}": array for number, array in enumerate(params)}
        check("params", params, len(named) > 0, "at least one array")
        dtypes = {array.dtype for array in named.values()}
        check("params", dtypes, len(dtypes) == 1 and next(iter(dtypes)).kind == "f", "arrays of one floating dtype")
        self.function, self._keyed, self.names = function, isinstance(params, dict), list(named)
        self._module, self.gradients = module_of(next(iter(named.values()))), None
        self.layers = [_Arrays(tuple(array.shape for array in named.values()))]
        self._parameters = self._module.concatenate([self._module.asarray(array).ravel() for array in named.values()])

    def lend(self, read):
        """The arrays lie elsewhere now; `read()` gives a copy of all in order."""
        self._parameters, self._read = None, read

    @property
    def parameters(self):
        """All parameters, one after the other."""
        return self._read() if self._parameters is None else self._parameters

    @property
    def tensors(self):
        """Name and shape of each array; all belong to layer 0."""
        return [Tensor(name, shape, 0) for name, shape in zip(self.names, self.layers[0].shapes)]

    def to(self, module=None, dtype=None):
        """Move to another array module or dtype."""
        self._module = module or self._module
        self._parameters = self._module.asarray(self._parameters, dtype=dtype or self._parameters.dtype)
        return self

    def describe(self):
        """The arrays as text: what must be equal on all ranks."""
        return [f"{name} {shape}" for name, shape in zip(self.names, self.layers[0].shapes)]

    def finished(self):
        """Layers in the order in which their gradients become ready."""
        return [0]

    def learn(self, features, labels, samples, hooks=Hooks(), scale=1.0):
        """Loss and gradients of these rows as their part of a batch of `samples` rows; see `Model.learn`."""
        layer, share = self.layers[0], len(labels) / samples
        hooks.forward(0)
        loss, gradients = self._call(layer.parameters, features, labels) if len(labels) else (0.0, None)
        hooks.backward(0)
        for target, gradient in zip(layer.gradients, gradients or [0.0] * len(layer.gradients)):
            target[...] = numpy.multiply(gradient, share * scale)
        hooks.ready(0)
        return float(loss) * share

    def _call(self, parameters, features, labels):
        given = dict(zip(self.names, parameters)) if self._keyed else list(parameters)
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

    def count_correct(self, features, labels, rows=4096, hooks=Hooks()):
        """Unknown: the function gives no predictions."""
        return None
