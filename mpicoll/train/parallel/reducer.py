"""The reducer of a rank: its parameters and gradients in flat buffers, and when what of them is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ...errors import ArgumentError, MpicollError
from ...support.arrays import Array, module_of
from ..monitor import Meter
from .buckets import Bucket, BucketLayout

if TYPE_CHECKING:
    from ...communicator import Communicator


class StaleParameters(MpicollError, RuntimeError):
    """A parameter was read before the values of the last update had come."""


class Reducer(ABC):
    """Base: the flat parameters and gradients of one rank, who updates which part, and when what is sent.

    parameters: flat array of `layout.size` elements; gradients are of its dtype. `owned[b]`: the slice of the flat buffer
    that this rank updates in bucket b. A step is, for each micro-batch, `begin`, for each layer `wait_for_layer`, then for
    each tensor `lend`, writing to that memory or any other, `ready`, and then `end`; after the last one `reduced` for each
    bucket, in order, then `invalidate`, and `publish` when the owned parameters have their new values. A tensor for which
    there was no `ready` has a gradient of zero in that micro-batch.
    """

    #: whether ranks own different parts
    divided = False
    #: whether gradients overwrite what is in their buffers, in this micro-batch
    fresh = True
    #: number of the bucket whose parameters are needed, and published, first
    first = 0
    owned: Sequence[slice]
    #: called before the last reduction of a step begins
    before_last: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, layout: BucketLayout, parameters: Array, comm: Communicator, meter: Meter) -> None:
        self.layout, self.parameters, self.comm, self.meter = layout, parameters, comm, meter
        self.module, self.rank, self.size = module_of(parameters), comm.Get_rank(), comm.Get_size()
        self.generation, self._current = 0, [0] * len(layout.buckets)
        self._buckets_of: defaultdict[int, list[int]] = defaultdict(list)  # by layer
        for tensor, bucket in zip(layout.tensors, layout.bucket_of):
            if bucket not in self._buckets_of[tensor.layer]:
                self._buckets_of[tensor.layer].append(bucket)
        #: tensors whose gradients backward has not written in this micro-batch
        self._absent: set[int] = set()
        #: memory that backward is writing to, by tensor
        self._lent: dict[int, Array] = {}

    # Gradients.

    @property
    @abstractmethod
    def gradient_bytes(self) -> int:
        """Bytes of all gradient buffers on this rank."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes that the collectives hold beside the buffers that they are bound to."""
        return 0

    @property
    def sendings(self) -> int:
        """How many times per micro-batch reductions start."""
        return 1

    def begin(self, first: bool, last: bool) -> None:
        """A micro-batch begins; first, last: of the step."""
        self.fresh = first
        self._absent = set(range(len(self.layout.tensors)))
        self._lent.clear()

    @abstractmethod
    def gradient(self, number: int) -> Array:
        """The memory of this tensor's gradient, which other tensors may share."""

    def lend(self, number: int) -> Array | None:
        """The memory of this tensor's gradient, which backward overwrites until `ready`; None where it is not free yet."""
        if not self.fresh or not self._is_free(number):
            return None
        lent = self._lent[number] = self.gradient(number)
        return lent

    def _is_free(self, number: int) -> bool:
        """Whether backward may write to the memory of this tensor's gradient; waits for what was reduced there before."""
        return True

    def ready(self, number: int, gradient: Array) -> None:
        """The gradient of this tensor is complete for this micro-batch: in the memory that was lent, or any other.

        Raises ArgumentError for a second one in this micro-batch: the first may be on its way.
        """
        if number not in self._absent:
            raise ArgumentError(f"gradient of {self.layout.tensors[number].name}: expected one for each micro-batch, got a "
                                "second one: a model calls the hooks of each layer once in a backward")  # fmt: skip
        self._absent.remove(number)
        if self._lent.pop(number, None) is not gradient:
            self._put(number, gradient)

    def _put(self, number: int, gradient: Array) -> None:
        """Write the gradient to its memory, or, unless `fresh`, add it."""
        target = self.gradient(number)
        target[...] = gradient if self.fresh else target.astype(gradient.dtype, copy=False) + gradient

    def _fill_absent(self, numbers: Iterable[int]) -> None:
        """Of these tensors, those that backward left out have a gradient of zero."""
        if self.fresh:
            for number in self._absent.intersection(numbers):
                self.gradient(number).fill(0)

    @abstractmethod
    def end(self) -> None:
        """The micro-batch is done: what has not been sent is sent."""

    @abstractmethod
    def reduced(self, bucket: Bucket) -> Array:
        """This rank's part of the summed gradients of a bucket, when it has come."""

    def collect(self) -> None:
        """Wait for all reductions of the step."""
        for bucket in self.layout.buckets:
            self.reduced(bucket)

    def abandon(self) -> None:
        """Bring to its end what is under way of a step that an exception has left. Collective, but no parameter is read."""

    # Parameters.

    def invalidate(self) -> None:
        """The owned parameters are about to change: all of them must have come, and until `publish` none may be read."""
        self.wait()
        self.generation += 1

    @abstractmethod
    def publish(self) -> None:
        """The owned parameters are new: bring them to all ranks."""

    @property
    @abstractmethod
    def heads(self) -> Array:
        """The first parameter of each rank's part of the bucket `first`, in rank order; none where every rank owns all."""

    def wait_for_heads(self) -> None:
        """Wait until they are there."""
        self._wait_for_bucket(self.first)

    def wait_for_layer(self, layer: int) -> None:
        """Wait until the parameters of this layer are there. Raises StaleParameters where they are not coming."""
        for number in self._buckets_of[layer]:
            self._wait_for_bucket(number)

    def wait(self) -> None:
        """Wait for all parameters."""
        for number in range(len(self.layout.buckets)):
            self._wait_for_bucket(number)

    def _wait_for_bucket(self, number: int) -> None:
        if self._current[number] != self.generation:
            names = ", ".join(self.layout.tensors[one].name for one in self.layout.buckets[number].tensors)
            raise StaleParameters(
                f"parameters {names} are those of update {self._current[number]}, expected update {self.generation}: they "
                "were read between an update and its publication"
            )

    def replaced(self) -> None:
        """All parameters on this rank were written from elsewhere."""
        self._all_are_current()

    def _all_are_current(self) -> None:
        self._current = [self.generation] * len(self._current)

    def is_current(self) -> bool:
        """Whether all parameters of the last update have come."""
        return all(generation == self.generation for generation in self._current)

    def plain(self) -> Array:
        """A copy of the parameters in forward order without padding; waits for them."""
        self.wait()
        return self.plain_now()

    def plain_now(self) -> Array:
        """The same of those that are there."""
        copy: Array = self.module.empty(self.layout.plain[-1], self.parameters.dtype)
        for plain, first, size in self.layout.runs(slice(0, self.layout.size)):
            copy[plain : plain + size] = self.parameters[first : first + size]
        return copy
