"""Models with any number of parameters of any shape, as a function and as layers of `mpicoll.train`."""

import numpy

from mpicoll.train import Dataset, Linear, Model, ReLU


def mixing(shapes, width, seed):
    """For each array a matrix of (elements, width): constants, through which every element has an effect of its own."""
    random = numpy.random.default_rng([seed, 1])
    total = sum(int(numpy.prod(shape)) for shape in shapes)
    return [random.standard_normal((int(numpy.prod(shape)), width)) / max(1, total) ** 0.5 for shape in shapes]


def first_values(shapes, seed):
    """Where the parameters begin."""
    random = numpy.random.default_rng([seed, 2])
    return [random.standard_normal(tuple(shape)) for shape in shapes]


def mixed(arrays, matrices):
    """A vector of `width` that depends on every element of all arrays, nowhere so little that rounding decides (Adam)."""
    return sum((array + 0.5 * numpy.sin(array)).ravel() @ matrix for array, matrix in zip(arrays, matrices))


def mixed_backward(arrays, matrices, gradient):
    """The gradients of the arrays from that of the vector."""
    slopes = [1 + 0.5 * numpy.cos(array) for array in arrays]
    return [slope * (matrix @ gradient).reshape(numpy.shape(slope)) for slope, matrix in zip(slopes, matrices)]


def regression(arrays, matrices, features, targets):
    """Half the mean squared error of a linear model whose weights are `mixed`, and the gradients of the arrays."""
    error = features @ mixed(arrays, matrices) - targets
    loss = (error @ error) / (2 * len(targets))
    return loss, mixed_backward(arrays, matrices, features.T @ error / len(targets))


class Scaling:
    """A layer of any number of tensors: y = x (1 + mixed(tensors))."""

    gradients = ()

    def __init__(self, width, shapes, seed):
        self.width, self.shapes, self.seed = width, tuple(tuple(shape) for shape in shapes), seed
        self.matrices = mixing(self.shapes, width, seed)

    def __repr__(self):
        return f"Scaling({self.width}, {self.shapes}, {self.seed})"

    def initialize(self, random):
        return first_values(self.shapes, self.seed)

    def bind(self, parameters, gradients):
        self.parameters, self.gradients = parameters, gradients

    def forward(self, x):
        self._x = x
        self._factor = (1 + mixed(self.parameters, self.matrices)).astype(x.dtype)
        return x * self._factor

    def backward(self, dy, first=False):
        for target, gradient in zip(self.gradients, mixed_backward(
                self.parameters, self.matrices, (dy * self._x).sum(axis=0))):  # fmt: skip
            target[...] = gradient
        return dy * self._factor


def left_out(config, layers, step, micro, rank):
    """Which of the `Scaling` layers a micro-batch of a rank leaves out."""
    if not config["leave_out"]:
        return set()
    random = numpy.random.default_rng([config["seed"], step, micro, rank])
    return {layer for layer in layers if random.random() < config["leave_out"]}


class Moody(Model):
    """A chain of layers that is not the same in all micro-batches.

    It leaves some layers out, forward and backward: they get no gradient. And it finishes layers in any order.
    """

    def prepare(self, config, rank, parts):
        """Begin to count. parts: micro-batches of this rank in a step."""
        self._config, self._rank, self._parts, self._calls = config, rank, parts, 0
        self._scalings = [number for number, layer in enumerate(self.layers) if isinstance(layer, Scaling)]

    _calls = _order = None
    _skipped = frozenset()

    def learn(self, *arguments, **named):
        if self._calls is not None:
            step, micro = divmod(self._calls, self._parts)
            self._skipped = left_out(self._config, self._scalings, step, micro, self._rank)
            if self._config["shuffle"]:
                self._order = numpy.random.default_rng([self._config["seed"], step, micro, self._rank, 1])
            self._calls += 1
        loss = super().learn(*arguments, **named)
        self._skipped = frozenset()
        return loss

    def forward(self, features, hooks=None):
        for number, layer in self._used():
            if hooks:
                hooks.forward(number)
            features = layer.forward(features)
        return features

    def backward(self, gradient, hooks):
        if self._order is not None:
            return self._backward_in_any_order(gradient, hooks)
        for number, layer in reversed(self._used()):
            hooks.backward(number)
            gradient = layer.backward(gradient, first=number == 0)
            hooks.ready(number)

    def _backward_in_any_order(self, gradient, hooks):
        finished = []
        for number, layer in reversed(self._used()):
            written = [numpy.empty(shape, gradient.dtype) for shape in layer.shapes]
            layer.bind(getattr(layer, "parameters", ()), written)
            gradient = layer.backward(gradient, first=number == 0)
            finished.append((number, layer, written))
        for number, layer, written in (finished[place] for place in self._order.permutation(len(finished))):
            hooks.backward(number)
            for target, one in zip(layer.gradients, written):
                target[...] = one
            hooks.ready(number)

    def _used(self):
        return [(number, layer) for number, layer in enumerate(self.layers) if number not in self._skipped]


def specification(config):
    """The layers as plain data: ("linear", inputs, outputs), ("scaling", width, shapes, seed), ("relu",)."""
    width, hidden = config["width"], config["hidden"]
    layers = [("linear", width, hidden)]
    for number, shapes in enumerate(config["layers"]):
        layers += [("scaling", hidden, shapes, config["seed"] + number), ("relu",)]
    return [*layers, ("linear", hidden, config["classes"])]


def chain(config, seed):
    """The `Model`. seed: of the first values of its `Linear` layers."""
    makers = {"linear": Linear, "relu": ReLU, "scaling": Scaling}
    return Moody([makers[kind](*rest) for kind, *rest in specification(config)], seed, dtype="float64")


def data(config):
    """The samples: (features, labels)."""
    random = numpy.random.default_rng([config["seed"], 3])
    labels = random.integers(0, config["classes"], config["samples"])
    centres = random.standard_normal((config["classes"], config["width"]))
    return centres[labels] + 0.5 * random.standard_normal((config["samples"], config["width"])), labels


def dataset(config):
    """The same as a `Dataset` without test samples."""
    features, labels = data(config)
    return Dataset(features, labels, features[:0], labels[:0])
