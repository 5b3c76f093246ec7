"""The reducer with a parameter server: gradients to rank 0, parameters back, nothing else meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...buffers import Contributions
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

    @property
    def _sum(self) -> Array:
        """What rank 0 has of all ranks."""
        sums: Array = self._all[0]
        return sums

    def end(self) -> None:
        self._fill_absent(self._absent)
        self._gathered = False

    def reduced(self, bucket: Bucket) -> Array:
        """The sum of the gradients, at rank 0."""
        if not self._gathered:
            self._gathered = True
            self._gather()
        return self._flat[:0] if self.rank else self._sum[bucket.start : bucket.stop]

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


class ReproducibleServer(ParameterServer):
    """The same, but that the gradients of each micro-batch are summed in fixed point on their way to rank 0.

    micro_batches: of this rank, which has memory for the gradients of each.
    """

    def __init__(self, layout: BucketLayout, parameters: Array, comm: Communicator, meter: Meter, micro_batches: int) -> None:
        super().__init__(layout, parameters, comm, meter)
        self._rows: Array = self.module.zeros((micro_batches, layout.size), parameters.dtype)
        self._all, self._row = self._rows[:0], 0

    @property
    def gradient_bytes(self) -> int:
        return self._flat.nbytes + self._rows.nbytes

    def begin(self, first: bool, last: bool) -> None:
        super().begin(True, last)
        self._row = 0 if first else self._row + 1

    def gradient(self, number: int) -> Array:
        return self.layout.view(self._rows[self._row], number)

    @property
    def _sum(self) -> Array:
        return self._flat

    def _gather(self) -> None:
        (bucket,) = self.layout.buckets  # a server has one
        with self.meter.communicating("sum gradients"):
            contributions = Contributions(self._rows, self.layout.edges(bucket))
            self.comm.Reduce(contributions, None if self.rank else self._flat, root=0, algorithm="linear")
