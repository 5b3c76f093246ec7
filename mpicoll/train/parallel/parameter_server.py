"""The reducer with a parameter server: gradients to rank 0, parameters back, nothing else meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...support.arrays import Array
from ..monitor import Meter
from .buckets import Bucket, BucketLayout
from .reducer import Reducer

if TYPE_CHECKING:
    from ...communicator import Communicator


class ParameterServer(Reducer):
    """Rank 0 gathers all gradients, sums them in rank order and updates; then it broadcasts the parameters.

    Rank 0 receives K-1 gradients and sends about log2(K) parameter vectors per step, and needs memory for K gradients: it is
    the bottleneck, which is what this reducer is there to show.
    """

    divided = True

    def __init__(self, layout: BucketLayout, parameters: Array, comm: Communicator, meter: Meter) -> None:
        super().__init__(layout, parameters, comm, meter)
        self._flat: Array = self.module.zeros(layout.size, parameters.dtype)
        everyone = 0 if self.rank else self.size
        self._all: Array = self.module.empty((everyone, layout.size), parameters.dtype)  # rank 0 has a row for each
        self.owned = [slice(one.start, one.start if self.rank else one.stop) for one in layout.buckets]

    @property
    def gradient_bytes(self) -> int:
        """At rank 0 also those of the others."""
        return self._flat.nbytes + self._all.nbytes

    def gradient(self, number: int) -> Array:
        return self.layout.view(self._flat, number)

    def end(self) -> None:
        self._gathered = False

    def reduced(self, bucket: Bucket) -> Array:
        """The sum of the gradients, at rank 0."""
        if not self._gathered:
            self._gathered = True
            self._gather()
        return self._flat[:0] if self.rank else self._all[0][bucket.start : bucket.stop]

    def _gather(self) -> None:
        with self.meter.communicating("gather gradients"):
            self.comm.Gather(self._flat, None if self.rank else self._all, root=0, algorithm="linear")
        if self.rank == 0:
            with self.meter.computing("sum"):
                for gradients in self._all[1:]:  # in rank order: the sum does not depend on who was first
                    self._all[0] += gradients

    @property
    def heads(self) -> Array:
        """Of rank 0, which owns everything."""
        return self.parameters[:1]

    def publish(self) -> None:
        """Everybody gets the parameters."""
        with self.meter.communicating("broadcast parameters"):
            self.comm.Bcast(self.parameters, root=0, algorithm="binomial")
        self._all_are_current()
