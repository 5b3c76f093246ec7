"""The exchange with a parameter server: gradients to rank 0, parameters back, nothing else meanwhile."""

from .reducer import Exchange


class Server(Exchange):
    """Rank 0 gathers all gradients, sums them in rank order and updates; then it broadcasts the parameters.

    Rank 0 receives K-1 gradients and sends about log2(K) parameter vectors per step, and needs memory for K gradients: it is
    the bottleneck, which is what this exchange is there to show.
    """

    divided = True

    def __init__(self, layout, parameters, comm, meter):
        super().__init__(layout, parameters, comm, meter)
        self.flat = self._zeros(layout.size)
        self._all = None if self.rank else self.module.empty((self.size, layout.size), parameters.dtype)
        self.owned = [slice(one.start, one.start if self.rank else one.stop) for one in layout.buckets]

    @property
    def gradient_bytes(self):
        """At rank 0 also those of the others."""
        return self.flat.nbytes + (0 if self.rank else self._all.nbytes)

    def end(self):
        self._gathered = False

    def reduced(self, bucket):
        """The sum of the gradients, at rank 0."""
        if not self._gathered:
            self._gathered = True
            with self.meter.communicating("gather gradients"):
                self.comm.Gather(self.flat, self._all, root=0, algorithm="linear")
            if self.rank == 0:
                with self.meter.computing("sum"):
                    for gradients in self._all[1:]:  # in rank order: the sum does not depend on who was first
                        self._all[0] += gradients
        return self.flat[:0] if self.rank else self._all[0][bucket.start : bucket.stop]

    def publish(self):
        """Everybody gets the parameters."""
        with self.meter.communicating("broadcast parameters"):
            self.comm.Bcast(self.parameters, root=0, algorithm="binomial")
        self._current = [self.generation] * len(self._current)
