"""The update: reduced gradients become new parameters, on the part that this rank owns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NoReturn, Protocol

import numpy
from mpi4py import MPI

from ...errors import MpicollError
from ...support.arrays import Array, module_of
from ..optim import LossScale, Optimizer, clip_factor, first_bad, squared_norm
from .buckets import Bucket
from .reducer import Reducer


class Readable(Protocol):
    """A checkpoint: vectors by name, in plain order."""

    def read(self, name: str, start: int, stop: int) -> Array: ...


class BadGradient(MpicollError, ArithmeticError):
    """A gradient is infinite or nan, and no loss scaling says that such steps are skipped."""


class Update:
    """An optimizer on the owned parts of an `Reducer`, one after the other as one shard.

    masters: keep the owned parameters in float32 besides the 16-bit ones that are sent. clip_norm: bring the norm of all
    gradients down to it. scale: a LossScale, or None; with one, a step whose gradients are not finite is skipped, on all ranks
    together. A norm costs one allreduce of 8 bytes where gradients are sharded, and waits for all buckets.
    """

    def __init__(self, optimizer: Optimizer, reducer: Reducer, masters: bool = False, clip_norm: float | None = None,
                 scale: LossScale | None = None) -> None:  # fmt: skip
        self.optimizer, self.reducer, self.clip_norm = optimizer, reducer, clip_norm
        self.skips, self.scale = scale is not None, scale or LossScale()
        self.starts = [0]
        for part in reducer.owned:
            self.starts.append(self.starts[-1] + part.stop - part.start)
        owned = [reducer.parameters[part] for part in reducer.owned]
        self.masters: Array | None = None
        if masters:
            self.masters = module_of(reducer.parameters).concatenate(owned).astype("float32")
        optimizer.allocate(self.total, reducer.parameters if self.masters is None else self.masters)

    @property
    def total(self) -> int:
        """Elements that this rank owns."""
        return self.starts[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of optimizer state and masters on this rank."""
        return self.optimizer.nbytes + (0 if self.masters is None else self.masters.nbytes)

    def step(self) -> bool:
        """Update and publish; False where the step is skipped."""
        reducer, meter, factor = self.reducer, self.reducer.meter, 1 / self.scale.value
        if self.skips or self.clip_norm is not None:
            norm = math.sqrt(self._squared_norm()) * factor
            if self.skips and not self.scale.update(math.isfinite(norm)):
                return False
            if not math.isfinite(norm):
                self._complain()
            factor *= 1.0 if self.clip_norm is None else clip_factor(norm, self.clip_norm)
        for bucket in reducer.layout.buckets:
            gradients = reducer.reduced(bucket)
            with meter.computing(f"update {bucket.number}"):
                self._check(gradients)
                if bucket.number == 0:
                    reducer.invalidate()
                    self.optimizer.advance()
                self._apply(bucket, gradients, factor)
        reducer.publish()
        return True

    def _check(self, gradients: Array) -> None:
        """A sum is cheap, and not finite where an element is not."""
        with numpy.errstate(all="ignore"):
            finite = bool(numpy.isfinite(gradients.sum(dtype="float32" if gradients.itemsize < 4 else None)))
        if not finite and first_bad(gradients) is not None:
            self._complain()

    def _apply(self, bucket: Bucket, gradients: Array, factor: float) -> None:
        parameters = self.reducer.parameters[self.reducer.owned[bucket.number]]
        start = self.starts[bucket.number]
        target = parameters if self.masters is None else self.masters[start : start + len(parameters)]
        self.optimizer.apply(target, gradients, start, self.total, factor)
        if target is not parameters:
            parameters[...] = target

    def _squared_norm(self) -> float:
        """Of all gradients, the same on all ranks."""
        reducer, total = self.reducer, numpy.zeros(1)
        for bucket in reducer.layout.buckets:
            gradients = reducer.reduced(bucket)
            with reducer.meter.computing("norm"):
                total += squared_norm(gradients)
        with numpy.errstate(invalid="ignore"):
            if reducer.divided:
                with reducer.meter.waiting("norm"):  # the same bits everywhere, or ranks could disagree about a skip
                    reducer.comm.Allreduce(MPI.IN_PLACE, total, algorithm="recursive_doubling")
        return float(total[0])

    def _complain(self) -> NoReturn:
        """Raise BadGradient that names the parameter, on the rank that has it."""
        reducer, found = self.reducer, []
        for bucket, part in zip(reducer.layout.buckets, reducer.owned):
            index = first_bad(reducer.reduced(bucket))
            if index is not None:
                found.append(reducer.layout.name_at(part.start + index))
        raise BadGradient(
            f"update {self.optimizer.steps + 1}: expected finite gradients, got infinity or nan in "
            f"{', '.join(dict.fromkeys(found)) or 'a part that another rank holds'}: lower the learning rate, clip "
            "(clip_norm), or skip such steps (loss_scale='dynamic')"
        )

    # Checkpoints.

    def pieces(self, part: slice) -> Iterator[tuple[int, int, int]]:
        """What lies in `part` of the flat buffer and is owned here: (first in plain order, first in the shard, elements)."""
        for start, owned in zip(self.starts, self.reducer.owned):
            low, high = max(part.start, owned.start), min(part.stop, owned.stop)
            if low < high:
                for plain, first, size in self.reducer.layout.runs(slice(low, high)):
                    yield plain, start + first - owned.start, size

    def vectors(self) -> dict[str, list[tuple[int, Array]]]:
        """{name: [(start in plain order, array), …]}: this rank's share of parameters and optimizer state."""
        reducer = self.reducer
        parameters = self.masters
        if parameters is None:
            parameters = reducer.module.concatenate([reducer.parameters[part] for part in reducer.owned])
        source: dict[str, Array] = {"parameters": parameters, **self.optimizer.state}
        kept: dict[str, list[tuple[int, Array]]] = {name: [] for name in source}
        for bucket in reducer.layout.buckets:
            # where all ranks own everything, each writes its shard of it
            mine = reducer.owned[bucket.number] if reducer.divided else bucket.shard(reducer.rank, reducer.size)
            for plain, first, size in self.pieces(mine):
                for name, array in source.items():
                    kept[name].append((plain, array[first : first + size]))
        return kept

    def restore(self, checkpoint: Readable, steps: int) -> None:
        """Take parameters and optimizer state, as `vectors` of any number of ranks gave them, and the number of updates."""
        reducer, self.optimizer.steps = self.reducer, steps
        for plain, first, size in self.pieces(slice(0, reducer.layout.size)):
            for slot, array in self.optimizer.state.items():
                array[first : first + size] = reducer.module.asarray(checkpoint.read(slot, plain, plain + size))
            if self.masters is not None:
                read = checkpoint.read("parameters", plain, plain + size)
                self.masters[first : first + size] = reducer.module.asarray(read)
        for plain, first, size in reducer.layout.runs(slice(0, reducer.layout.size)):
            read = reducer.module.asarray(checkpoint.read("parameters", plain, plain + size))
            reducer.parameters[first : first + size] = read
