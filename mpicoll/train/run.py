"""One call of `Trainer.fit`: what it was asked for, and the loop over epochs and steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from operator import index
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from ..support.checks import check, check_integer
from ..support.optional import require
from .checkpoint import Stop, stop_signals
from .data import Sampler
from .history import History
from .monitor import Advance, Log, finite, metrics_log, progress_bar
from .parallel import DriftCheck, Strategy, Vote
from .snapshots import Snapshots


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `Trainer.fit`, which documents them, but for the data."""

    epochs: int | None
    steps: int | None
    batch_size: int
    seed: int
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int | None
    keep: int
    resume: bool
    progress: bool
    metrics: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        """Make NumPy's integers those of Python, which a checkpoint can hold."""
        for name in ("epochs", "steps", "batch_size", "seed", "checkpoint_every", "keep"):
            with suppress(TypeError):  # None, and what `check` refuses
                object.__setattr__(self, name, index(getattr(self, name)))

    def facts(self) -> dict[str, object]:
        """By name, what must be equal on all ranks."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("progress", "metrics")
        }

    def check(self) -> None:
        """Raise ArgumentError for the first value that cannot be used."""
        epochs = self.epochs
        steps = self.steps
        check(
            "epochs, steps",
            (epochs, steps),
            (epochs is None) != (steps is None),
            "one of them, the other None",
        )
        check_integer(
            "steps" if epochs is None else "epochs", steps if epochs is None else epochs, 1
        )
        check_integer("batch_size", self.batch_size, 1)
        directory = self.checkpoint
        resume = self.resume
        check(
            "checkpoint",
            directory,
            directory is None or os.fspath(directory),
            "the name of a directory",
        )
        if self.checkpoint_every is not None:
            check_integer("checkpoint_every", self.checkpoint_every, 1)
            check(
                "checkpoint",
                directory,
                directory is not None,
                "a directory, since checkpoint_every is given",
            )
        check(
            "resume",
            resume,
            directory is not None or not resume,
            "False, or a checkpoint directory to resume from",
        )
        if self.progress:
            require("tqdm")

    def steps_of(self, sampler: Sampler) -> int:
        """How many steps there are to be."""
        return self.steps if self.steps is not None else (self.epochs or 0) * len(sampler)


class Observers(NamedTuple):
    """Who is told of each step."""

    advance: Advance
    log: Log
    #: whether anybody is
    listening: bool
    #: signals, where there is a checkpoint to write when one comes
    stop: Stop | None


class Run:
    """The loop over steps: epochs are written down, both reported, checkpoints saved when due.

    snapshots: None where there are to be no checkpoints. tests: number of test samples. done: steps
    made before.
    """

    def __init__(
        self,
        strategy: Strategy,
        history: History,
        sampler: Sampler,
        options: FitOptions,
        snapshots: Snapshots | None,
        tests: int,
        done: int,
    ) -> None:
        self._strategy = strategy
        self._history = history
        self._sampler = sampler
        self._options = options
        self._snapshots = snapshots
        self._tests = tests
        self._done = done
        self._every = options.checkpoint_every or len(sampler)
        self._drift = DriftCheck(strategy)
        self._vote = Vote(strategy.comm)

    def write_down(self) -> None:
        """Write down the epoch whose last step was made before."""
        self._write_down(len(self._strategy.meter.steps))

    def __call__(self) -> None:
        """Make all steps that are left."""
        steps = self._options.steps_of(self._sampler)
        self._history.stopped = None
        self._drift.compare(self._done)
        with self._observed(steps) as observers:
            for batches in self._sampler.epochs(steps, self._done):
                self._epoch(batches, observers)
                if self._history.stopped:
                    break
            self._drift.compare(self._done)
            self._save()
        self._strategy.finish()

    @contextmanager
    def _observed(self, steps: int) -> Iterator[Observers]:
        """Progress bar, metrics, and, where there is a checkpoint to write then, signals."""
        options = self._options
        is_root = self._strategy.rank == 0
        shown = options.progress and is_root
        logged = options.metrics is not None and is_root
        samples, done = (self._sampler.total(count) for count in (steps, self._done))
        with ExitStack() as stack:
            stop = None
            if self._snapshots:
                stack.enter_context(self._snapshots.locked())
                stop = stack.enter_context(stop_signals())
            advance = stack.enter_context(progress_bar(samples, done, shown))
            log = stack.enter_context(metrics_log(options.metrics, self._strategy.comm))
            yield Observers(advance, log, shown or logged, stop)

    def _epoch(self, batches: Sequence[NDArray[numpy.int64]], observers: Observers) -> None:
        """Make the steps of one epoch, or what is left of it, and write them down."""
        history = self._history
        first = len(self._strategy.meter.steps)
        self._steps(batches, observers)
        if not history.stopped or self._done % len(self._sampler) == 0:
            self._write_down(first)
            epoch = history.epochs[-1]
            observers.log(**epoch | {"loss": finite(epoch["loss"])})
        if self._done % self._every == 0:
            self._save()

    def _steps(self, batches: Sequence[NDArray[numpy.int64]], observers: Observers) -> None:
        """One step after the other, until a signal comes."""
        strategy = self._strategy
        loading = strategy.loader.batches(self._sampler, batches, strategy.options.accumulate)
        # closed here, whatever happens: the garbage collector may run in any thread, the loader's
        # too, which cannot end itself
        with closing(loading) as loaded:
            for batch in batches:
                stop = observers.stop if strategy.meets(self._done + 1) else None
                if stop:
                    self._vote.begin(stop.received is not None)
                with strategy.meter.step():
                    loss = strategy.step(next(loaded), len(batch))
                self._done += 1
                self._report(len(batch), loss, observers)
                self._drift.after(self._done)
                if stop and self._vote.end():
                    signals = strategy.comm.allgather(stop.received)
                    self._history.stopped = next(filter(None, signals))
                    break
                if self._done % self._every == 0 and self._done % len(self._sampler):
                    self._save()

    def _report(self, samples: int, loss: float, observers: Observers) -> None:
        if not observers.listening:  # to sum up what steps cost takes as long as a small step
            return
        meter = self._strategy.meter
        hidden = meter.hidden(-20)
        observers.advance(samples, loss, hidden)
        observers.log(
            step=self._done,
            epoch=len(self._history.epochs) + 1,
            samples=samples,
            loss=finite(float(loss)),
            hidden=hidden,
            **meter.steps[-1],
        )

    def _write_down(self, first: int) -> None:
        """Loss and accuracy of an epoch, and what its steps cost from `first` of the meter on."""
        strategy = self._strategy
        history = self._history
        if self._done == self._options.steps_of(self._sampler):
            strategy.finish()
        history.losses += strategy.reduce_losses()
        count = (self._done - 1) % len(self._sampler) + 1
        losses = history.losses[-count:]
        sizes = self._sampler.sizes[:count]
        correct = strategy.count_correct() if self._tests else None
        history.test_accuracy = None if correct is None else correct / self._tests
        epoch: dict[str, Any] = {
            "epoch": len(history.epochs) + 1,
            "loss": sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes),
            "test_accuracy": history.test_accuracy,
            "seconds": strategy.meter.total("step_s", first),
        }
        for name in ("compute_s", "communication_s", "exposed_s"):
            epoch[name] = strategy.meter.total(name, first)
        history.epochs.append(epoch)
        history.cut_short = count < len(self._sampler)

    def _save(self) -> None:
        if self._snapshots:
            self._drift.compare(self._done)
            self._snapshots.save(self._done)
