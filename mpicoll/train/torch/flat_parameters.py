"""A PyTorch module's parameters of one dtype, in the buffers of a reducer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError
from ...support.checks import check
from ...support.tensors import array_of, tensor_of, torch
from ..model import Tensor
from ..monitor import Meter
from ..options import Options
from ..parallel import Bucket, Reducer, take_written

if TYPE_CHECKING:
    from ...communicator import Communicator


_REMEDY = (
    "it in the buffer in which wrap() placed it: change values with parameter.data.copy_(…) after "
    "model.settle(); other types and other memory (parameter.data = …, module.double()) before the "
    "first backward"
)


class ShardedGradient(torch.Tensor):
    """The `grad` of a parameter under ZeRO: it has no values, and raises when computed with.

    torch.nn.utils.clip_grad_norm_ would find no gradients otherwise, and clip nothing, silently.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__repr__"):  # shape, dtype, …
            return super().__torch_function__(func, types, args, kwargs or {})
        raise ArgumentError(
            "gradient: expected its values to be used by the optimizer alone, got "
            f"{func.__name__}: under ZeRO they are summed over ranks, and each has those of its "
            "shard; to clip them, wrap(…, clip_norm=…)"
        )


def sharded_gradient(like: torch.Tensor) -> torch.Tensor:
    """One of this shape, in the memory of one element."""
    stand_in: torch.Tensor = (
        like.new_full((), math.nan).expand(like.shape).as_subclass(ShardedGradient)
    )
    return stand_in


def forget(parameter: torch.nn.Parameter) -> None:
    """Take away what stands for its gradient on the shards."""
    if isinstance(parameter.grad, ShardedGradient):
        parameter.grad = None


class Flat:
    """Parameters as views of one flat tensor, whose gradients go to a `reducer`.

    named: {name: parameter}, of one dtype and device. layers: for each, the number of the
    computation that needs it first. order: their numbers as backward finishes them. `pieces`: for
    each bucket what this rank updates of it, as a Parameter: in memory of its own where parameters
    are sent in codes (`masters`). Gradients are averaged over the ranks. Collective.
    """

    def __init__(
        self,
        named: Mapping[str, torch.nn.Parameter],
        layers: Iterable[int],
        order: Iterable[int],
        comm: Communicator,
        options: Options,
        meter: Meter,
    ) -> None:
        self.names = list(named)
        self.parameters = list(named.values())
        tensors = [
            Tensor(name, tuple(parameter.shape), layer)
            for (name, parameter), layer in zip(named.items(), layers)
        ]
        like = array_of(self.parameters[0].data.new_empty(0))
        self.reducer = Reducer(tensors, order, like, comm, meter, options, self.fill)
        self.values = tensor_of(self.reducer.parameters)
        values: Any = self.values  # a tensor is indexed and shaped as an array is
        for number, parameter in enumerate(self.parameters):
            view: Any = self.reducer.layout.view(values, number)
            parameter.data = view.copy_(parameter.data)
        self._places = [parameter.data_ptr() for parameter in self.parameters]
        self.views = [tensor_of(self.reducer.gradient(number)) for number in range(len(tensors))]
        self._codes = options.parameter_compression
        self.pieces = [
            torch.nn.Parameter(values[part].clone() if self._is_coded(bucket) else values[part])
            for bucket, part in zip(self.reducer.layout.buckets, self.reducer.owned)
        ]

    def _is_coded(self, bucket: Bucket) -> bool:
        """Whether its parameters are sent in codes."""
        return self._codes is not None and not bucket.is_exact

    @property
    def masters(self) -> list[torch.Tensor]:
        """What this rank has uncompressed of the buckets that are sent in codes."""
        buckets = self.reducer.layout.buckets
        pairs = zip(buckets, self.pieces)
        return [piece.data for bucket, piece in pairs if self._is_coded(bucket)]

    def piece(self, bucket: Bucket) -> torch.nn.Parameter:
        """What this rank updates of a bucket, whose parameters are those of the last update.

        A master is used unless the program has written another value to the parameter since.
        """
        piece = self.pieces[bucket.number]
        if self._is_coded(bucket) and len(piece):
            held = array_of(self.values[self.reducer.owned[bucket.number]])
            take_written(array_of(piece.data), held, self._codes)
        return piece

    @torch.no_grad()
    def publish(self) -> None:
        """Begin to bring the updated pieces to all ranks."""
        for bucket, piece in zip(self.reducer.layout.buckets, self.pieces):
            if self._is_coded(bucket):
                self.values[self.reducer.owned[bucket.number]].copy_(piece)
        self.reducer.publish()

    def check_places(self) -> None:
        """Raise ArgumentError for a parameter that left the flat buffer, which ZeRO updates."""
        for name, parameter, place in zip(self.names, self.parameters, self._places):
            kept = parameter.dtype == self.values.dtype and (
                parameter.data_ptr() == place or not self.reducer.divided
            )
            check(f"parameter {name}", f"other memory, of {parameter.dtype}", kept, _REMEDY)

    @torch.no_grad()
    def fill(self, bucket: Bucket) -> None:
        """Copy the gradients of a bucket into it, divided by the number of ranks."""
        for number in bucket.tensors:
            view = self.views[number]
            gradient = self._gradient(number)
            if gradient is None:
                view.zero_()
            else:
                torch.mul(gradient, 1 / self.reducer.size, out=view)
            # under ZeRO the buffer soon holds sums of other elements
            self.parameters[number].grad = sharded_gradient(view) if self.reducer.divided else view

    @torch.no_grad()
    def keep(self) -> None:
        """Move the gradients into the flat buffer while micro-batches are added up.

        Where they are added up on shards, the next backward writes new ones.
        """
        if self.reducer.gradients.every_micro_batch:
            self.forget()
            return
        for number, (parameter, view) in enumerate(zip(self.parameters, self.views)):
            gradient = self._gradient(number)
            if gradient is not None and gradient.data_ptr() != view.data_ptr():
                parameter.grad = view.copy_(gradient)

    def forget(self) -> None:
        """Before gradients are written: take away what stands for those on the shards."""
        for parameter in self.parameters:
            forget(parameter)

    def _gradient(self, number: int) -> torch.Tensor | None:
        gradient = self.parameters[number].grad
        kind = getattr(gradient, "layout", torch.strided)
        check(
            f"gradient of {self.names[number]}",
            kind,
            kind == torch.strided,
            "a dense one; set sparse=False in the module",
        )
        return gradient
