"""Strategies: one model, its exchange, its update and its feed, made to fit each other."""

import numpy
from mpi4py import MPI

from ...support.arrays import module_of
from ..data import LocalFeed, ServerFeed
from ..monitor import Meter
from ..optim import LossScale
from .buckets import Layout
from .hooks import Binding
from .optimizer_step import Update
from .parameter_server import Server
from .reducer import Buckets


class Strategy:
    """Every rank computes its share of each batch and ends each step with the same parameters. All calls are collective.

    model: a Model or FunctionModel, whose first parameters are those of rank 0; it then lives in the exchange's buffers.
    """

    def __init__(self, model, optimizer, comm, options):
        self.model, self.comm, self.options = model, comm, options
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        values, module = model.parameters, module_of(model.parameters)
        comm.Bcast(values, root=0, algorithm="binomial")
        narrow = values.dtype != _dtype(options.precision)  # 16 bits on the wire, float32 here
        layout = self._layout(model, _dtype(options.precision).itemsize)
        flat = module.zeros(layout.size, _dtype(options.precision))
        for plain, first, count in layout.runs(slice(0, layout.size)):
            flat[first : first + count] = values[plain : plain + count]
        self.meter = Meter(comm, module, self._estimate(flat.nbytes))
        self.exchange = self._exchange(layout, flat)
        self.scale = None if options.loss_scale is None else LossScale.of(options.loss_scale)
        self.update = Update(optimizer, self.exchange, narrow, options.clip_norm, self.scale)
        self.binding = Binding(model, self.exchange, values.dtype)
        model.lend(self.exchange.plain)
        feed = ServerFeed if options.strategy == "parameter_server" else LocalFeed
        self.feed = feed(comm, flat, values.dtype, self.meter)
        self.losses = []

    def _layout(self, model, itemsize):
        tensors, options = model.tensors, self.options
        if options.strategy == "parameter_server":
            return Layout(tensors, range(len(tensors)), 1, float("inf"))
        least = min(options.bucket_limits) if options.sharded else options.bucket_bytes
        order = [number for layer in model.finished() for number, tensor in enumerate(tensors) if tensor.layer == layer]
        return Layout(tensors, order, self.size, max(1, least // itemsize))

    def _exchange(self, layout, flat):
        options = self.options
        if options.strategy == "parameter_server":
            return Server(layout, flat, self.comm, self.meter)
        limits = [max(1, limit // flat.itemsize) for limit in options.bucket_limits]
        return Buckets(layout, flat, self.comm, self.meter, sharded=options.sharded, scattered=options.scattered,
                       reduction=options.collectives[0], overlap=options.overlap, words=options.words_of(options.algorithm),
                       gradient_limit=limits[0], parameter_limit=limits[1], adding=options.accumulate > 1)  # fmt: skip

    def _estimate(self, nbytes):
        """Bytes per step where MPI's own calls, which cannot be counted, move the buckets: the least there can be."""
        if self.options.algorithm != "native":
            return None
        return self.predicted_bytes(nbytes)

    def predicted_bytes(self, nbytes=None):
        """What a rank sends per step in theory, from the bytes of all parameters with padding; None for a parameter server."""
        options, nbytes = self.options, self.exchange.parameters.nbytes if nbytes is None else nbytes
        if options.strategy == "parameter_server":
            return None
        times = options.accumulate if options.scattered else 1
        halves = {"allreduce": 2, "reduce_scatter": 1}[options.collectives[0]] * times + options.sharded
        return halves * (self.size - 1) * nbytes // self.size

    def step(self, batches, samples):
        """One update from this rank's micro-batches, lists of (features, labels), of a batch of `samples`.

        Returns the loss of the batch as far as this rank knows it.
        """
        loss, rows, scale = 0.0, 0, self.scale.value if self.scale else 1.0
        for number, (features, labels) in enumerate(batches):
            self.exchange.begin(number == 0, number == len(batches) - 1)
            with self.meter.computing("forward and backward"):
                loss += self.model.learn(features, labels, samples, self.binding, scale)
            self.exchange.end()
            rows += len(labels)
        self.update.step()
        self.losses.append(loss)
        return loss * samples / max(1, rows)

    def settle(self):
        """Losses of the steps since the last call, of the whole batches, equal on all ranks; all parameters have come."""
        self.exchange.settle()
        losses, self.losses = numpy.array(self.losses), []
        self.comm.Allreduce(MPI.IN_PLACE, losses, algorithm="recursive_doubling")
        return losses.tolist()

    def count_correct(self):
        """Correct answers on the test data, or None where the model does not tell."""
        correct = self.model.count_correct(*self.feed.test(), hooks=self.binding)
        return None if correct is None else self.comm.allreduce(correct)

    def describe(self):
        """Which collectives run in each step."""
        options = self.options
        if options.strategy == "parameter_server":
            return "parameter_server (scatterv linear, gather linear, bcast binomial)"
        words = options.words_of(options.algorithm)
        used = ", ".join(f"{name} {words[name]}" for name in options.collectives)
        return f"{options.strategy} ({used}; {len(self.exchange.layout.buckets)} buckets, overlap {options.overlap})"


def _dtype(precision):
    """The NumPy dtype of a precision."""
    if precision == "bfloat16":
        from ...support.optional import require

        return numpy.dtype(require("ml_dtypes").bfloat16)
    return numpy.dtype(precision)
