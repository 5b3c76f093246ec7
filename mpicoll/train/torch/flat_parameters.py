"""A PyTorch module's parameters of one dtype, in the buffers of an exchange."""

from ...support.checks import check
from ..model import Tensor
from ..parallel import Buckets, Layout
from .interop import array_of, tensor_of, torch


class Flat:
    """Makes parameters views of one flat tensor, and brings their gradients into the buckets of its `exchange`.

    named: {name: parameter}, of one dtype and device. layers: for each, the number of the computation that needs it first.
    order: their numbers as backward finishes them. `pieces`: for each bucket what this rank updates of it, as a Parameter.
    Gradients are averaged over the ranks. Collective.
    """

    def __init__(self, named, layers, order, comm, options, meter):
        self.names, self.parameters = list(named), list(named.values())
        first = self.parameters[0]
        limits = [max(1, limit // first.element_size()) for limit in options.bucket_limits]
        tensors = [Tensor(name, tuple(one.shape), layer) for (name, one), layer in zip(named.items(), layers)]
        least = min(limits) if options.sharded else limits[0]
        layout = Layout(tensors, order, comm.Get_size(), least)
        self.values = torch.zeros(layout.size, dtype=first.dtype, device=first.device)
        for number, parameter in enumerate(self.parameters):
            view = layout.view(self.values, number)
            parameter.data = view.copy_(parameter.data)
        self.exchange = Buckets(layout, array_of(self.values), comm, meter, sharded=options.sharded,
                                scattered=options.scattered, reduction=options.collectives[0], overlap=options.overlap,
                                words=options.words_of(options.algorithm), gradient_limit=limits[0],
                                parameter_limit=limits[1], adding=options.accumulate > 1)  # fmt: skip
        self.exchange.fill = self.fill
        self.views = [tensor_of(self.exchange.gradient(number)) for number in range(len(tensors))]
        self.pieces = [torch.nn.Parameter(self.values[part]) for part in self.exchange.owned]

    @torch.no_grad()
    def fill(self, bucket):
        """Bring the gradients into a bucket that is about to be sent, divided by the number of ranks."""
        self.exchange.acquire(bucket.tensors[0])
        for number in bucket.tensors:
            view, gradient = self.views[number], self._gradient(number)
            if gradient is None:
                view.zero_()
            else:
                torch.mul(gradient, 1 / self.exchange.size, out=view)
            # under ZeRO the buffer soon holds sums of other elements
            self.parameters[number].grad = None if self.exchange.divided else view

    @torch.no_grad()
    def keep(self):
        """Move the gradients into the flat buffer, so that there is one copy of them while micro-batches are added up."""
        for number, (parameter, view) in enumerate(zip(self.parameters, self.views)):
            gradient = self._gradient(number)
            if gradient is not None and gradient.data_ptr() != view.data_ptr():
                parameter.grad = view.copy_(gradient)

    def _gradient(self, number):
        gradient = self.parameters[number].grad
        kind = getattr(gradient, "layout", torch.strided)
        check(f"gradient of {self.names[number]}", kind, kind == torch.strided, "a dense one; set sparse=False in the module")
        return gradient

    def reduced(self):
        """(piece, its gradient) of each bucket, as they come."""
        for bucket, piece in zip(self.exchange.layout.buckets, self.pieces):
            yield piece, tensor_of(self.exchange.reduced(bucket))
