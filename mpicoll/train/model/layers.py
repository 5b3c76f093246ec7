"""Layers with explicit backward passes, and the model that keeps them in two flat arrays."""

import math

import numpy

from ...support.arrays import module_of
from ...support.checks import check, check_integer
from .tensor import Tensor


class Linear:
    """y = x W + b, with x of shape (samples, inputs) and W of shape (inputs, outputs).

    A layer has `shapes` (those of its parameters), `initialize`, `bind`, `forward` and `backward`; the model gives it
    views into its flat arrays. `backward` overwrites the gradients: one call per forward.
    """

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self.shapes = ((inputs, outputs), (outputs,))

    def __repr__(self):
        return f"Linear({self.inputs}, {self.outputs})"

    def initialize(self, random):
        """First values of the parameters, float64: He's normal weights, for the ReLU that follows, and zero biases."""
        return random.standard_normal(self.shapes[0]) * math.sqrt(2 / self.inputs), numpy.zeros(self.outputs)

    def bind(self, parameters, gradients):
        """Use these arrays (shaped as `shapes`; weights, biases) from now on."""
        self.parameters, self.gradients = parameters, gradients

    def forward(self, x):
        """Values for x; x is kept for `backward`."""
        self._x, (weight, bias) = x, self.parameters
        y = x @ weight
        y += bias
        return y

    def backward(self, dy, first=False):
        """Write the parameters' gradients; return the gradient of x, or None where nobody needs it (`first`)."""
        weights, biases = self.gradients
        module_of(dy).matmul(self._x.T, dy, out=weights)
        dy.sum(axis=0, out=biases)
        return None if first else dy @ self.parameters[0].T


class ReLU:
    """y = max(x, 0), with derivative 0 at 0; no parameters."""

    shapes = gradients = ()

    def __repr__(self):
        return "ReLU()"

    def initialize(self, random):
        """No parameters, no values."""
        return ()

    def bind(self, parameters, gradients):
        """No parameters, nothing to bind."""

    def forward(self, x):
        """Values for x; their sign is kept for `backward`."""
        self._positive = x > 0
        return x * self._positive

    def backward(self, dy, first=False):
        """The gradient of x."""
        return dy * self._positive


def cross_entropy(logits, labels, samples):
    """Softmax cross-entropy summed over the rows and divided by `samples`, and its gradient.

    logits: (rows, classes); labels: (rows,) integers; samples: size of the whole batch of which these rows are a part.
    Returns (loss as float, gradient of the logits' shape and dtype). The loss is summed in float64.
    """
    module = module_of(logits)
    rows = module.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    gradient = module.exp(shifted)
    sums = gradient.sum(axis=1, keepdims=True)
    loss = (module.log(sums[:, 0]) - shifted[rows, labels]).sum(dtype="float64")
    gradient /= sums
    gradient[rows, labels] -= 1
    gradient /= samples
    return float(loss) / samples, gradient


class Hooks:
    """What a model calls around the computation of each layer (counted from 0); here nothing happens."""

    def forward(self, layer):
        """It is about to compute its values."""

    def backward(self, layer):
        """It is about to write its gradients."""

    def ready(self, layer):
        """Its gradients are written."""


class _Seen(Hooks):
    """Notes which layers are ready."""

    def __init__(self):
        self.layers = []

    def ready(self, layer):
        self.layers.append(layer)


class Model:
    """A chain of layers whose parameters and gradients are views into flat arrays.

    `parameters` and `gradients` are one-dimensional and contiguous, of one dtype. A trainer gives the layers views into
    buffers of its own: `parameters` then is a copy, and `gradients` is None.
    """

    def __init__(self, layers, seed=0, dtype="float32"):
        self.layers = list(layers)
        check_integer("seed", seed, 0)
        check("layers", self.layers, any(isinstance(layer, Linear) for layer in self.layers), "at least one Linear")
        random = numpy.random.default_rng(seed)
        values = [value.ravel() for layer in self.layers for value in layer.initialize(random)]
        self._use(numpy.concatenate(values).astype(dtype))

    def _use(self, parameters):
        """Take over a flat array of parameters; make gradients of its kind; give each layer its views."""
        self._parameters, self.gradients = parameters, module_of(parameters).zeros_like(parameters)
        start = 0
        for layer in self.layers:
            stop = start + sum(math.prod(shape) for shape in layer.shapes)
            layer.bind(*(_views(flat[start:stop], layer.shapes) for flat in (self._parameters, self.gradients)))
            start = stop

    def lend(self, read):
        """The layers get other views now (`Layer.bind`); `read()` gives a copy of all parameters in the order of `tensors`."""
        self._parameters, self.gradients, self._read = None, None, read

    @property
    def parameters(self):
        """All parameters in the order of `tensors`."""
        return self._read() if self._parameters is None else self._parameters

    @parameters.setter
    def parameters(self, values):
        """For `model.parameters += …`."""
        self._parameters[...] = values

    @property
    def tensors(self):
        """The parameters in forward order: (name, shape, layer) of each."""
        return [Tensor(f"{kind} of layer {number}, {layer!r}", shape, number) for number, layer in enumerate(self.layers)
                for kind, shape in zip(("weights", "biases"), layer.shapes)]  # fmt: skip

    def to(self, module=None, dtype=None):
        """Move to another array module (cupy) or dtype, in place; returns the model. Views taken before are stale."""
        module = module or module_of(self.parameters)
        self._use(module.array(self.parameters, dtype=dtype or self.parameters.dtype))
        return self

    @property
    def inputs(self):
        """Width of the features it takes."""
        return next(layer.inputs for layer in self.layers if isinstance(layer, Linear))

    @property
    def outputs(self):
        """Number of logits, one per class."""
        return next(layer.outputs for layer in reversed(self.layers) if isinstance(layer, Linear))

    def describe(self):
        """The layers as text, one each: what must be equal on all ranks."""
        return [repr(layer) for layer in self.layers]

    def forward(self, features, hooks=Hooks()):
        """Logits (samples, classes) for features (samples, inputs)."""
        for number, layer in enumerate(self.layers):
            hooks.forward(number)
            features = layer.forward(features)
        return features

    def backward(self, gradient, hooks=Hooks()):
        """Write the gradients, given the gradient of the logits that `forward` returned last."""
        for number, layer in reversed(list(enumerate(self.layers))):
            hooks.backward(number)
            gradient = layer.backward(gradient, first=number == 0)
            hooks.ready(number)

    def learn(self, features, labels, samples, hooks=Hooks(), scale=1.0):
        """Loss and, written where the layers' gradients are, gradients of these rows as their part of a batch of `samples`.

        The sum of the parts over the ranks is the mean over the batch, whatever the split; a rank without rows
        contributes zeros. scale: a factor for the gradients. Returns a float.
        """
        if len(labels) == 0:
            self._contribute_nothing(hooks)
            return 0.0
        loss, gradient = cross_entropy(self.forward(features, hooks), labels, samples)
        self.backward(gradient if scale == 1.0 else gradient * gradient.dtype.type(scale), hooks)
        return loss

    def finished(self):
        """Layers in the order in which backward finishes them, observed on one sample of zeros."""
        seen, module = _Seen(), module_of(self.parameters)
        self.learn(module.zeros((1, self.inputs), self.parameters.dtype), module.zeros(1, "int64"), 1, seen)
        return seen.layers

    def _contribute_nothing(self, hooks):
        for number in range(len(self.layers)):
            hooks.forward(number)
        for number, layer in reversed(list(enumerate(self.layers))):
            hooks.backward(number)
            for gradient in layer.gradients:
                gradient.fill(0)
            hooks.ready(number)

    def count_correct(self, features, labels, rows=4096, hooks=Hooks()):
        """How many of these samples get the right label; `rows` at a time, to bound the memory."""
        parts = [slice(start, start + rows) for start in range(0, len(labels), rows)]
        return sum(int((self.forward(features[part], hooks).argmax(axis=1) == labels[part]).sum()) for part in parts)


def _views(flat, shapes):
    """Consecutive pieces of a flat array, shaped."""
    views = []
    for shape in shapes:
        views.append(flat[: math.prod(shape)].reshape(shape))
        flat = flat[math.prod(shape) :]
    return views


def mlp(widths, seed=0, dtype="float32"):
    """Linear layers of these widths with ReLU between them: `mlp([64, 512, 10])` has one hidden layer of 512.

    seed: of the first weights; dtype: float32 or float64.
    """
    check("widths", widths, len(widths) >= 2, "inputs, hidden widths and outputs, such as [64, 512, 10]")
    for width in widths:
        check_integer("widths", width, 1)
    layers = [Linear(widths[0], widths[1])]
    for inputs, outputs in zip(widths[1:], widths[2:]):
        layers += [ReLU(), Linear(inputs, outputs)]
    return Model(layers, seed, dtype)
