"""The update: reduced gradients become new parameters, on the part that this rank owns."""

import math

import numpy
from mpi4py import MPI

from ...errors import MpicollError
from ...support.arrays import module_of
from ..optim import LossScale, clip_factor, first_bad, squared_norm


class BadGradient(MpicollError, ArithmeticError):
    """A gradient is infinite or nan, and no loss scaling says that such steps are skipped."""


class Update:
    """An optimizer on the owned parts of an `Exchange`, one after the other as one shard.

    masters: keep the owned parameters in float32 besides the 16-bit ones that are sent. clip_norm: bring the norm of all
    gradients down to it. scale: a LossScale, or None; with one, a step whose gradients are not finite is skipped, on all ranks
    together. A norm costs one allreduce of 8 bytes where gradients are sharded, and waits for all buckets.
    """

    def __init__(self, optimizer, exchange, masters=False, clip_norm=None, scale=None):
        self.optimizer, self.exchange, self.clip_norm = optimizer, exchange, clip_norm
        self.skips, self.scale = scale is not None, scale or LossScale()
        self.starts = [0]
        for part in exchange.owned:
            self.starts.append(self.starts[-1] + part.stop - part.start)
        owned = [exchange.parameters[part] for part in exchange.owned]
        self.masters = module_of(exchange.parameters).concatenate(owned).astype("float32") if masters else None
        optimizer.allocate(self.total, exchange.parameters if self.masters is None else self.masters)

    @property
    def total(self):
        """Elements that this rank owns."""
        return self.starts[-1]

    @property
    def nbytes(self):
        """Bytes of optimizer state and masters on this rank."""
        return self.optimizer.nbytes + (0 if self.masters is None else self.masters.nbytes)

    def step(self):
        """Update and publish; False where the step is skipped."""
        exchange, meter, factor = self.exchange, self.exchange.meter, 1 / self.scale.value
        if self.skips or self.clip_norm is not None:
            norm = math.sqrt(self._squared_norm()) * factor
            if self.skips and not self.scale.update(math.isfinite(norm)):
                return False
            if not math.isfinite(norm):
                self._complain()
            factor *= 1.0 if self.clip_norm is None else clip_factor(norm, self.clip_norm)
        for bucket in exchange.layout.buckets:
            gradients = exchange.reduced(bucket)
            with meter.computing(f"update {bucket.number}"):
                self._check(gradients)
                if bucket.number == 0:
                    exchange.outdate()
                    self.optimizer.advance()
                self._apply(bucket, gradients, factor)
        exchange.publish()
        return True

    def _check(self, gradients):
        """A sum is cheap, and not finite where an element is not."""
        with numpy.errstate(all="ignore"):
            finite = bool(numpy.isfinite(gradients.sum(dtype="float32" if gradients.itemsize < 4 else None)))
        if not finite and first_bad(gradients) is not None:
            self._complain()

    def _apply(self, bucket, gradients, factor):
        parameters = self.exchange.parameters[self.exchange.owned[bucket.number]]
        start = self.starts[bucket.number]
        target = parameters if self.masters is None else self.masters[start : start + len(parameters)]
        self.optimizer.apply(target, gradients, start, self.total, factor)
        if target is not parameters:
            parameters[...] = target

    def _squared_norm(self):
        """Of all gradients, the same on all ranks."""
        exchange, total = self.exchange, numpy.zeros(1)
        for bucket in exchange.layout.buckets:
            gradients = exchange.reduced(bucket)
            with exchange.meter.computing("norm"):
                total += squared_norm(gradients)
        with numpy.errstate(invalid="ignore"):
            if exchange.divided:
                with exchange.meter.waiting("norm"):  # the same bits everywhere, or ranks could disagree about a skip
                    exchange.comm.Allreduce(MPI.IN_PLACE, total, algorithm="recursive_doubling")
        return float(total[0])

    def _complain(self):
        """Raise BadGradient that names the parameter, on the rank that has it."""
        exchange, found = self.exchange, []
        for bucket, part in zip(exchange.layout.buckets, exchange.owned):
            index = first_bad(exchange.reduced(bucket))
            if index is not None:
                found.append(exchange.layout.name_at(part.start + index))
        raise BadGradient(
            f"update {self.optimizer.steps + 1}: expected finite gradients, got infinity or nan in "
            f"{', '.join(dict.fromkeys(found)) or 'a part that another rank holds'}: lower the learning rate, clip "
            "(clip_norm), or skip such steps (loss_scale='dynamic')"
        )

    # Checkpoints.

    def pieces(self, part):
        """What lies in `part` of the flat buffer and is owned here: (first in plain order, first in the shard, elements)."""
        for start, owned in zip(self.starts, self.exchange.owned):
            low, high = max(part.start, owned.start), min(part.stop, owned.stop)
            if low < high:
                for plain, first, size in self.exchange.layout.runs(slice(low, high)):
                    yield plain, start + first - owned.start, size

    def vectors(self):
        """{name: [(start in plain order, array), …]}: this rank's share of parameters and optimizer state."""
        exchange = self.exchange
        source = {"parameters": self.masters, **self.optimizer.state}
        if self.masters is None:
            source["parameters"] = exchange.module.concatenate([exchange.parameters[part] for part in exchange.owned])
        kept = {name: [] for name in source}
        for bucket in exchange.layout.buckets:
            # where all ranks own everything, each writes its shard of it
            mine = exchange.owned[bucket.number] if exchange.divided else bucket.shard(exchange.rank, exchange.size)
            for plain, first, size in self.pieces(mine):
                for name, array in source.items():
                    kept[name].append((plain, array[first : first + size]))
        return kept

    def restore(self, checkpoint, steps):
        """Take parameters and optimizer state, as `vectors` of any number of ranks gave them, and the number of updates."""
        exchange, self.optimizer.steps = self.exchange, steps
        for plain, first, size in self.pieces(slice(0, exchange.layout.size)):
            for slot, array in self.optimizer.state.items():
                array[first : first + size] = exchange.module.asarray(checkpoint.read(slot, plain, plain + size))
            if self.masters is not None:
                read = checkpoint.read("parameters", plain, plain + size)
                self.masters[first : first + size] = exchange.module.asarray(read)
        for plain, first, size in exchange.layout.runs(slice(0, exchange.layout.size)):
            read = exchange.module.asarray(checkpoint.read("parameters", plain, plain + size))
            exchange.parameters[first : first + size] = read
