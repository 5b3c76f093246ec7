"""A PyTorch module's parameters of one dtype, in the buffers of a reducer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...support.checks import check
from ...support.tensors import array_of, tensor_of, torch
from ..model import Tensor
from ..monitor import Meter
from ..parallel import Bucket, BucketReducer, Options, bucket_layout, zeros

if TYPE_CHECKING:
    from ...communicator import Communicator


class Flat:
    """Makes parameters views of one flat tensor, and brings their gradients into the buckets of its `reducer`.

    named: {name: parameter}, of one dtype and device. layers: for each, the number of the computation that needs it first.
    order: their numbers as backward finishes them. `pieces`: for each bucket what this rank updates of it, as a Parameter.
    Gradients are averaged over the ranks. Collective.
    """

    def __init__(self, named: Mapping[str, torch.nn.Parameter], layers: Iterable[int], order: Iterable[int],
                 comm: Communicator, options: Options, meter: Meter) -> None:  # fmt: skip
        self.names, self.parameters = list(named), list(named.values())
        first = self.parameters[0]
        tensors = [Tensor(name, tuple(one.shape), layer) for (name, one), layer in zip(named.items(), layers)]
        layout = bucket_layout(tensors, order, comm.Get_size(), options, first.element_size())
        self.values = tensor_of(zeros(layout.size, array_of(first.data.new_empty(0)), comm))
        values: Any = self.values  # a tensor is indexed and shaped as an array is
        for number, parameter in enumerate(self.parameters):
            view: Any = layout.view(values, number)
            parameter.data = view.copy_(parameter.data)
        self.reducer = BucketReducer(layout, array_of(self.values), comm, meter, options, self.fill)
        self.views = [tensor_of(self.reducer.gradient(number)) for number in range(len(tensors))]
        self.pieces = [torch.nn.Parameter(self.values[part]) for part in self.reducer.owned]

    @torch.no_grad()
    def fill(self, bucket: Bucket) -> None:
        """Bring the gradients into a bucket that is about to be sent, divided by the number of ranks."""
        self.reducer.acquire(bucket.tensors[0])
        for number in bucket.tensors:
            view, gradient = self.views[number], self._gradient(number)
            if gradient is None:
                view.zero_()
            else:
                torch.mul(gradient, 1 / self.reducer.size, out=view)
            # under ZeRO the buffer soon holds sums of other elements
            self.parameters[number].grad = None if self.reducer.divided else view

    @torch.no_grad()
    def keep(self) -> None:
        """Move the gradients into the flat buffer, so that there is one copy of them while micro-batches are added up."""
        for number, (parameter, view) in enumerate(zip(self.parameters, self.views)):
            gradient = self._gradient(number)
            if gradient is not None and gradient.data_ptr() != view.data_ptr():
                parameter.grad = view.copy_(gradient)

    def _gradient(self, number: int) -> torch.Tensor | None:
        gradient = self.parameters[number].grad
        kind = getattr(gradient, "layout", torch.strided)
        check(f"gradient of {self.names[number]}", kind, kind == torch.strided, "a dense one; set sparse=False in the module")
        return gradient

    def reduced(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """(piece, its gradient) of each bucket, as they come."""
        for bucket, piece in zip(self.reducer.layout.buckets, self.pieces):
            yield piece, tensor_of(self.reducer.reduced(bucket))
