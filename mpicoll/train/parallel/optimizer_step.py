"""The update: reduced gradients become new parameters, on the part that this rank owns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, NoReturn, Protocol

import numpy
from mpi4py import MPI

from ...errors import MpicollError
from ...schedule import bounds
from ...support.arrays import Array, module_of
from ..optim import HOPELESS, LossScale, Optimizer, clip_factor, first_bad, square_of_words, squared_norm, whole_squares
from .buckets import Bucket
from .reducer import Reducer

_REMEDY = "lower the learning rate, clip (clip_norm), or skip such steps (loss_scale='dynamic')"


_HOPELESS = "gradients are not finite with any loss scale; look for nan and infinity in the data and in the loss"


class Readable(Protocol):
    """A checkpoint: vectors by name, in plain order."""

    def read(self, name: str, start: int, stop: int) -> Array: ...


class BadGradient(MpicollError, ArithmeticError):
    """A gradient is infinite or nan, and no loss scaling says that such steps are skipped."""


def bad_gradient(update: int, names: Iterable[str]) -> BadGradient:
    """The error that names parameters."""
    return BadGradient(f"update {update}: expected finite gradients, got infinity or nan in {', '.join(names)}: {_REMEDY}")


class Update:
    """An optimizer on the owned parts of an `Reducer`, one after the other as one shard.

    masters: keep the owned parameters in float32 besides the 16-bit ones that are sent. clip_norm: bring the norm of all
    gradients down to it. scale: a LossScale, or None; with one, a step whose gradients are not finite is skipped, on all ranks
    together. A norm costs one allreduce of 8 bytes, and waits for all buckets.

    Without a norm only its owner sees that a gradient is not finite. It tells the others without a message: it publishes nan
    in place of one parameter, and `confirm` looks for that on all ranks.
    """

    def __init__(self, optimizer: Optimizer, reducer: Reducer, masters: bool = False, clip_norm: float | None = None,
                 scale: LossScale | None = None) -> None:  # fmt: skip
        self.optimizer, self.reducer, self.clip_norm = optimizer, reducer, clip_norm
        self.skips, self.scale = scale is not None, scale or LossScale()
        self.starts = [0]
        for part in reducer.owned:
            self.starts.append(self.starts[-1] + part.stop - part.start)
        owned = [reducer.parameters[part] for part in reducer.owned]
        self._bad: list[str] = []  # names of this rank's parameters whose gradients are not finite
        self._kept: list[float] = []  # the parameter that nan replaces
        self._unconfirmed = False
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

    @property
    def bad(self) -> list[str]:
        """Names of this rank's parameters whose gradients in the last update were not finite."""
        return self._bad

    def step(self, made: Callable[[float | None], object] = lambda factor: None) -> bool:
        """Update and publish; False where the step is skipped. `confirm` then says whether all ranks could do it.

        made: called when the update is made, with the factor of the gradients, or skipped, with None, and before anything of
        it is sent.
        """
        reducer, factor = self.reducer, 1 / self.scale.value
        finite: Iterator[bool]
        if self.skips or self.clip_norm is not None:
            norm = math.sqrt(self._squared_norm()) * factor
            if self.skips and not self.scale.update(math.isfinite(norm)):
                if self.scale.is_hopeless:  # on all ranks: they have the same norm
                    raise BadGradient(f"update {self.optimizer.steps + 1}: {HOPELESS} steps in a row were skipped: {_HOPELESS}")
                made(None)
                return False
            if not math.isfinite(norm):
                self._complain_of_norm()
            factor *= 1.0 if self.clip_norm is None else clip_factor(norm, self.clip_norm)
            finite = repeat(True)
        else:
            finite = self._finite()
        for bucket, good in zip(reducer.layout.buckets, finite):
            gradients = reducer.reduced(bucket)
            with reducer.meter.computing(f"update {bucket.number}"):
                if not good:
                    self._look_at(bucket, gradients)
                if bucket.number == 0:
                    reducer.invalidate()
                    self.optimizer.advance()
                if not self._bad:
                    self._apply(bucket, gradients, factor)
        made(factor)
        self._publish()
        return True

    def _finite(self) -> Iterator[bool]:
        """For each bucket, as they come, whether its sum is, which it is not where a gradient is not; a sum is cheap.

        On a device the host would stand still for each: there all are summed first, and it waits once.
        """
        sums: Iterable[Any] = map(self._sum, self.reducer.layout.buckets)
        if self.reducer.module is not numpy:
            sums = self.reducer.module.stack(list(sums)).tolist()
        return map(math.isfinite, sums)

    def _sum(self, bucket: Bucket) -> Any:
        gradients = self.reducer.reduced(bucket)
        with self.reducer.meter.computing(f"sum {bucket.number}"), numpy.errstate(all="ignore"):
            return gradients.sum(dtype="float32" if gradients.itemsize < 4 else None)

    def _look_at(self, bucket: Bucket, gradients: Array) -> None:
        """Note a gradient that is not finite."""
        if (index := first_bad(gradients)) is not None:
            self._bad.append(self.reducer.layout.name_at(self.reducer.owned[bucket.number].start + index))

    def _publish(self) -> None:
        """Publish what is new, or the nan which says that it is not."""
        if self._bad:
            head = self._head(self.reducer.rank)
            self._kept = [float(value) for value in head.tolist()]
            head.fill(math.nan)
        self._unconfirmed = True
        self.reducer.publish()

    def confirm(self) -> None:
        """Raise BadGradient on all ranks if one of them could not make its part of the last update.

        Collective, and for the begin of a step: it waits for the parameters that are needed first.
        """
        if not self._unconfirmed:
            return
        self._unconfirmed = False
        self.reducer.wait_for_heads()
        heads = self.reducer.heads
        if self._bad or (len(heads) and numpy.isnan(heads).any()):
            self._complain(self.optimizer.steps)

    def _apply(self, bucket: Bucket, gradients: Array, factor: float) -> None:
        parameters = self.reducer.parameters[self.reducer.owned[bucket.number]]
        start = self.starts[bucket.number]
        target = parameters if self.masters is None else self.masters[start : start + len(parameters)]
        self.optimizer.apply(target, gradients, start, self.total, factor)
        if target is not parameters:
            parameters[...] = target

    def _reproducible_squared_norm(self) -> float:
        """The same, and the same for any number of ranks: in fixed point. Costs an allreduce of 8 bytes and one of 16."""
        reducer = self.reducer
        gradients = [reducer.reduced(bucket) for bucket in reducer.layout.buckets]
        with reducer.meter.computing("norm"), numpy.errstate(all="ignore"):
            largest = [float(abs(one).max()) for one in gradients if len(one)]
            top = numpy.array([max(largest, default=0.0) if all(map(math.isfinite, largest)) else math.inf])
        with reducer.meter.waiting("norm"):
            reducer.comm.Allreduce(MPI.IN_PLACE, top, op=MPI.MAX)
        if not 0 < top[0] < math.inf:
            return float(top[0])
        exponent = max(-900, math.frexp(top[0])[1])
        with reducer.meter.computing("norm"):
            words = numpy.array([whole_squares(one, exponent) for one in gradients], "int64").sum(axis=0)
        if reducer.divided:
            with reducer.meter.waiting("norm"):
                reducer.comm.Allreduce(MPI.IN_PLACE, words)
        return square_of_words(words.tolist(), exponent)

    def _squared_norm(self) -> float:
        """Of all gradients, the same bits on all ranks.

        Each rank computes its part, also where all have all gradients: the bits of a sum depend on the machine, and on the
        threads of its BLAS.
        """
        if self.reducer.comm.reproducible:
            return self._reproducible_squared_norm()
        reducer, parts = self.reducer, []
        for bucket in reducer.layout.buckets:
            gradients = reducer.reduced(bucket)
            if not reducer.divided:
                low, high = bounds(bucket.size, reducer.size)[reducer.rank : reducer.rank + 2]
                gradients = gradients[low:high]
            with reducer.meter.computing("norm"):
                parts.append(squared_norm(gradients))
        with reducer.meter.computing("norm"):
            total = numpy.array([float(sum(parts))])  # waits for the device, once
        with numpy.errstate(invalid="ignore"):
            if reducer.size > 1:
                with reducer.meter.waiting("norm"):
                    reducer.comm.Allreduce(MPI.IN_PLACE, total, algorithm="recursive_doubling")
        return float(total[0])

    def _complain_of_norm(self) -> NoReturn:
        reducer, update = self.reducer, self.optimizer.steps + 1
        for bucket in reducer.layout.buckets:
            self._look_at(bucket, reducer.reduced(bucket))
        self._complain(update)
        raise BadGradient(f"update {update}: expected finite gradients, got a norm beyond float64: {_REMEDY}")

    def _complain(self, update: int) -> None:
        """Put the parameters back that nan replaced, and raise BadGradient if there are bad gradients. Collective."""
        self.reducer.wait()
        everyone = self.reducer.comm.allgather((self._bad, self._kept))
        self._bad, self._kept = [], []
        for rank, (_, kept) in enumerate(everyone):
            for value in kept:
                self._head(rank).fill(value)
        names = dict.fromkeys(name for bad, _ in everyone for name in bad)
        if names:
            raise bad_gradient(update, names)

    def _head(self, rank: int) -> Array:
        """A rank's parameter among the reducer's `heads`, as an array of one; of none where every rank owns all."""
        return self.reducer.heads[rank : rank + 1]

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

    def restore(self, checkpoint: Readable, steps: int, low: int = 0, high: int | None = None) -> None:
        """Take parameters and optimizer state, as `vectors` of any number of ranks gave them, and the number of updates.

        low, high: of the elements, in plain order, that are there; by default all.
        """
        reducer, self.optimizer.steps = self.reducer, steps
        self._bad, self._kept, self._unconfirmed = [], [], False
        high = reducer.layout.plain[-1] if high is None else high
        for plain, first, size in _within(self.pieces(slice(0, reducer.layout.size)), low, high):
            for slot, array in self.optimizer.state.items():
                array[first : first + size] = reducer.module.asarray(checkpoint.read(slot, plain, plain + size))
            if self.masters is not None:
                read = checkpoint.read("parameters", plain, plain + size)
                self.masters[first : first + size] = reducer.module.asarray(read)
        for plain, first, size in _within(reducer.layout.runs(slice(0, reducer.layout.size)), low, high):
            read = reducer.module.asarray(checkpoint.read("parameters", plain, plain + size))
            reducer.parameters[first : first + size] = read


def _within(runs: Iterable[tuple[int, int, int]], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """What of some runs, (first in plain order, first elsewhere, elements), lies between two places of the plain order."""
    for plain, first, size in runs:
        begin, end = max(plain, low), min(plain + size, high)
        if begin < end:
            yield begin, first + begin - plain, end - begin
