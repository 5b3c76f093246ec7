"""The update: reduced gradients become new parameters, on the part that this rank owns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, NoReturn, Protocol

import numpy

from ...errors import MpicollError
from ...support.arrays import Array
from ..optim import HOPELESS, LossScale, Optimizer, clip_factor, first_bad
from ..options import Options
from .buckets import Bucket, within
from .masters import take_written
from .norm import squared_norm_of
from .reducer import Reducer
from .vote import Vote

_REMEDY = "lower the learning rate, clip (clip_norm), or skip such steps (loss_scale='dynamic')"
_NO_SCALE_HELPS = (
    f"{HOPELESS} steps in a row were skipped: gradients are not finite with any loss scale; "
    "look for nan and infinity in the data and in the loss"
)


#: the name of the parameters in a checkpoint
PARAMETERS = "parameters"


class Readable(Protocol):
    """A checkpoint: vectors by name, in plain order."""

    @property
    def totals(self) -> Mapping[str, int]: ...

    def read(self, name: str, start: int, stop: int) -> Array: ...


class BadGradient(MpicollError, ArithmeticError):
    """A gradient is infinite or nan, and no loss scaling says that such steps are skipped."""


def bad_gradient(update: int, names: Iterable[str]) -> BadGradient:
    """The error that names parameters."""
    listed = ", ".join(names)
    return BadGradient(
        f"update {update}: expected finite gradients, got infinity or nan in {listed}: {_REMEDY}"
    )


class Update:
    """An optimizer on the owned parts of a `Reducer`, one after the other as one shard.

    An update is `prepare`, `apply`, `publish`; `confirm` says later whether all ranks could do it.

    masters: keep the owned parameters in float32 besides those that are sent, which have 16 bits or
    are compressed. With a loss scale, a step whose gradients are not finite is skipped, on all
    ranks together. A norm costs one allreduce of 8 bytes, and waits for all buckets.

    Without a norm only its owner sees that a gradient is not finite. The ranks vote on it while
    parameters are published and the next gradients are computed.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        reducer: Reducer,
        masters: bool,
        options: Options,
    ) -> None:
        self.optimizer = optimizer
        self.reducer = reducer
        self.clip_norm = options.clip_norm
        self.scale: LossScale | None = None
        if options.loss_scale is not None:
            self.scale = LossScale.of(options.loss_scale)
        #: where each bucket's part begins in the shard, and its end
        self.starts = [0]
        for part in reducer.owned:
            self.starts.append(self.starts[-1] + part.stop - part.start)
        #: names of this rank's parameters whose gradients in the last update were not finite
        self.bad: list[str] = []
        self._has_norm = self.scale is not None or self.clip_norm is not None
        #: None where every rank learns by itself that a gradient is not finite
        self._vote: Vote | None = None
        if reducer.divided and reducer.size > 1 and not self._has_norm:
            self._vote = Vote(reducer.comm)
        self.masters: Array | None = None
        self._compression = options.parameter_compression
        if masters:
            owned = [reducer.parameters[part] for part in reducer.owned]
            wide = numpy.result_type("float32", reducer.parameters.dtype)
            self.masters = reducer.module.concatenate(owned).astype(wide)
        optimizer.allocate(self.total, self.values)

    @property
    def total(self) -> int:
        """Elements that this rank owns."""
        return self.starts[-1]

    @property
    def values(self) -> Array:
        """What is updated: the masters, or all parameters where there are none."""
        return self.reducer.parameters if self.masters is None else self.masters

    @property
    def nbytes(self) -> int:
        """Bytes of optimizer state and masters on this rank."""
        return self.optimizer.nbytes + (0 if self.masters is None else self.masters.nbytes)

    @property
    def loss_scale(self) -> float:
        """The factor of the loss in this step."""
        return 1.0 if self.scale is None else self.scale.value

    def take_written(self) -> None:
        """Go on from what the program has written to parameters, which masters would undo. Local.

        Not while those of the last update are on their way: they differ from their masters.
        """
        if self.masters is None or not self.reducer.is_current():
            return
        for bucket, part in zip(self.reducer.layout.buckets, self.reducer.owned):
            parameters = self.reducer.parameters[part]
            start = self.starts[bucket.number]
            masters = self.masters[start : start + len(parameters)]
            take_written(masters, parameters, None if bucket.is_exact else self._compression)

    def prepare(self) -> float | None:
        """The factor for the gradients; None where the step is skipped, on all ranks.

        What the learning rate's schedule raises comes here, on all ranks, before anything changes.
        """
        self.optimizer.rate_of(self.optimizer.steps + 1)
        factor = 1 / self.loss_scale
        if not self._has_norm:
            return factor
        norm = math.sqrt(squared_norm_of(self.reducer)) * factor
        if self.scale is not None and not self.scale.update(math.isfinite(norm)):
            if self.scale.is_hopeless:  # on all ranks: they have the same norm
                raise BadGradient(f"update {self.optimizer.steps + 1}: {_NO_SCALE_HELPS}")
            return None
        if not math.isfinite(norm):
            self._complain_of_norm()
        return factor if self.clip_norm is None else factor * clip_factor(norm, self.clip_norm)

    def apply(self, factor: float) -> None:
        """Update the owned parameters, bucket by bucket as their gradients come."""
        finite: Iterable[bool] = repeat(True) if self._has_norm else self._finite()
        for (bucket, gradients), good in zip(self.reducer.updating(), finite):
            with self.reducer.meter.computing(f"update {bucket.number}"):
                if not good:
                    self._look_at(bucket, gradients)
                if bucket.number == 0:
                    self.optimizer.advance()
                if not self.bad:
                    self._apply(bucket, gradients, factor)

    def _finite(self) -> Iterator[bool]:
        """For each bucket, as they come, whether its sum, and so all of it, is finite.

        On a device the host would stand still for each: there all are summed first, and it waits
        once.
        """
        sums: Iterable[Any] = map(self._sum, self.reducer.layout.buckets)
        if self.reducer.module is not numpy:
            sums = self.reducer.module.stack(list(sums)).tolist()
        return map(math.isfinite, sums)

    def _sum(self, bucket: Bucket) -> Any:
        gradients = self.reducer.reduced(bucket)
        with (
            self.reducer.meter.computing(f"sum {bucket.number}"),
            numpy.errstate(all="ignore"),
        ):
            return gradients.sum(dtype="float32" if gradients.itemsize < 4 else None)

    def _look_at(self, bucket: Bucket, gradients: Array) -> None:
        """Note a gradient that is not finite."""
        index = first_bad(gradients)
        if index is not None:
            start = self.reducer.owned[bucket.number].start
            self.bad.append(self.reducer.layout.name_at(start + index))

    def _apply(self, bucket: Bucket, gradients: Array, factor: float) -> None:
        parameters = self.reducer.parameters[self.reducer.owned[bucket.number]]
        start = self.starts[bucket.number]
        target = parameters
        if self.masters is not None:
            target = self.masters[start : start + len(parameters)]
        self.optimizer.apply(target, gradients, start, self.total, factor)
        if target is not parameters:
            parameters[...] = target

    def publish(self) -> None:
        """Publish the parameters, and ask whether all ranks could update theirs."""
        if self._vote is not None:
            self._vote.begin(bool(self.bad))
        self.reducer.publish()

    def confirm(self) -> None:
        """Raise BadGradient on all ranks if one of them could not make its part of the update.

        Collective, and to be called before the next update.
        """
        if (self._vote is not None and self._vote.end()) or self.bad:
            self._complain(self.optimizer.steps)

    def _complain_of_norm(self) -> NoReturn:
        update = self.optimizer.steps + 1
        for bucket in self.reducer.layout.buckets:
            self._look_at(bucket, self.reducer.reduced(bucket))
        self._complain(update)
        raise BadGradient(
            f"update {update}: expected finite gradients, got a norm beyond float64: {_REMEDY}"
        )

    def _complain(self, update: int) -> None:
        """Raise BadGradient if there are bad gradients on any rank. Collective."""
        self.reducer.wait()
        everyone = self.reducer.comm.allgather(self.bad)
        self.bad = []
        names = dict.fromkeys(name for bad in everyone for name in bad)
        if names:
            raise bad_gradient(update, names)

    # Checkpoints.

    def pieces(self, part: slice) -> Iterator[tuple[int, int, int]]:
        """What lies in `part` of the flat buffer and is owned here.

        (First in plain order, first in the shard, elements) of each run.
        """
        for start, owned in zip(self.starts, self.reducer.owned):
            low = max(part.start, owned.start)
            high = min(part.stop, owned.stop)
            if low < high:
                for plain, first, size in self.reducer.layout.runs(slice(low, high)):
                    yield plain, start + first - owned.start, size

    def vectors(self) -> dict[str, list[tuple[int, Array]]]:
        """This rank's share of parameters and optimizer state, by name.

        {name: [(start in plain order, array), …]}.
        """
        reducer = self.reducer
        parameters = self.masters
        if parameters is None:
            owned = [reducer.parameters[part] for part in reducer.owned]
            parameters = reducer.module.concatenate(owned)
        source: dict[str, Array] = {PARAMETERS: parameters, **self.optimizer.state}
        kept: dict[str, list[tuple[int, Array]]] = {name: [] for name in source}
        for bucket in reducer.layout.buckets:
            # where all ranks own everything, each writes its shard of it
            mine = (
                reducer.owned[bucket.number]
                if reducer.divided
                else bucket.shard(reducer.rank, reducer.size)
            )
            for plain, first, size in self.pieces(mine):
                for name, array in source.items():
                    kept[name].append((plain, array[first : first + size]))
        return kept

    def restore(
        self, checkpoint: Readable, steps: int, low: int = 0, high: int | None = None
    ) -> None:
        """Take parameters, optimizer state and the number of updates from a checkpoint.

        Any number of ranks may have given them by `vectors`.

        low, high: of the elements, in plain order, that are there; by default all.
        """
        reducer = self.reducer
        self.optimizer.steps = steps
        if self._vote is not None:
            self._vote.end()
        self.bad = []
        high = reducer.layout.elements if high is None else high
        for plain, first, size in within(self.pieces(slice(0, reducer.layout.size)), low, high):
            for slot, array in self.optimizer.state.items():
                array[first : first + size] = reducer.module.asarray(
                    checkpoint.read(slot, plain, plain + size)
                )
            if self.masters is not None:
                read = checkpoint.read(PARAMETERS, plain, plain + size)
                self.masters[first : first + size] = reducer.module.asarray(read)
        for plain, first, size in within(reducer.layout.runs(), low, high):
            read = reducer.module.asarray(checkpoint.read(PARAMETERS, plain, plain + size))
            reducer.parameters[first : first + size] = read
