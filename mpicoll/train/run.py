"""One call of `Trainer.fit`: what it was asked for, and the loop over epochs and steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI
from numpy.typing import NDArray

from ..communicator import Communicator
from ..support.checks import check, check_integer
from ..support.optional import require
from .checkpoint import Stop, stop_signals
from .data import Sampler
from .history import History
from .monitor import Advance, Log, finite, metrics_file, progress_bar
from .parallel import DriftCheck, Strategy
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

    def facts(self) -> dict[str, object]:
        """By name, what must be equal on all ranks."""
        return {name: value for name, value in asdict(self).items() if name not in ("progress", "metrics")}

    def check(self) -> None:
        """Raise ArgumentError for the first value that cannot be used."""
        epochs, steps = self.epochs, self.steps
        check("epochs, steps", (epochs, steps), (epochs is None) != (steps is None), "one of them, the other None")
        check_integer("steps" if epochs is None else "epochs", steps if epochs is None else epochs, 1)
        check_integer("batch_size", self.batch_size, 1)
        directory, resume = self.checkpoint, self.resume
        check("checkpoint", directory, directory is None or os.fspath(directory), "the name of a directory")
        if self.checkpoint_every is not None:
            check_integer("checkpoint_every", self.checkpoint_every, 1)
            check("checkpoint", directory, directory is not None, "a directory, since checkpoint_every is given")
        check("resume", resume, directory is not None or not resume, "False, or a checkpoint directory to resume from")
        if self.progress:
            require("tqdm")

    def steps_of(self, sampler: Sampler) -> int:
        """How many steps there are to be."""
        return self.steps if self.steps is not None else (self.epochs or 0) * len(sampler)


class Observers(NamedTuple):
    """Who is told of each step. listening: whether anybody is."""

    advance: Advance
    log: Log
    listening: bool


class StopVote:
    """Whether any rank got a signal: asked while a step is made, known at its end. Collective."""

    def __init__(self, comm: Communicator, stop: Stop) -> None:
        self._comm, self._stop, self._flag = comm, stop, numpy.zeros(1, "i4")

    def begin(self) -> None:
        """Ask all ranks."""
        self._flag[0] = self._stop.received is not None
        self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._flag, op=MPI.MAX, algorithm="native")

    def end(self) -> str | None:
        """The name of the signal, the same on all ranks, or None."""
        self._request.Wait()
        if not self._flag[0]:
            return None
        signals: Sequence[str | None] = self._comm.allgather(self._stop.received)
        return next(filter(None, signals))


class Run:
    """The loop: steps are made, epochs written down, both reported, and checkpoints saved as they fall due.

    snapshots: None where there are to be no checkpoints. tests: number of test samples. done: steps made before.
    """

    def __init__(self, strategy: Strategy, history: History, sampler: Sampler, options: FitOptions,
                 snapshots: Snapshots | None, tests: int, done: int) -> None:  # fmt: skip
        self._strategy, self._history, self._sampler, self._options = strategy, history, sampler, options
        self._snapshots, self._tests, self._done = snapshots, tests, done
        self._every = options.checkpoint_every or len(sampler)
        self._drift = DriftCheck(strategy.update, strategy.comm)

    def write_down(self) -> None:
        """Write down the epoch whose last step was made before."""
        self._write_down(len(self._strategy.meter.steps))

    def __call__(self) -> None:
        """Make all steps that are left."""
        steps, self._history.stopped = self._options.steps_of(self._sampler), None
        self._drift.compare(self._done)
        with self._observed(steps) as (observers, vote):
            for batches in self._sampler.epochs(steps, self._done):
                self._epoch(batches, observers, vote)
                if self._history.stopped:
                    break
            self._drift.compare(self._done)
            self._save()

    @contextmanager
    def _observed(self, steps: int) -> Iterator[tuple[Observers, StopVote | None]]:
        """Progress bar, metrics, and, where there is a checkpoint to write then, signals."""
        sampler, options, comm = self._sampler, self._options, self._strategy.comm
        with ExitStack() as stack:
            vote = None
            if self._snapshots:
                stack.enter_context(self._snapshots.locked())
                vote = StopVote(comm, stack.enter_context(stop_signals()))
            shown = options.progress and self._strategy.rank == 0
            advance = stack.enter_context(progress_bar(sampler.total(steps), sampler.total(self._done), shown))
            log = stack.enter_context(metrics_file(options.metrics, comm))
            logged = options.metrics is not None and self._strategy.rank == 0
            yield Observers(advance, log, shown or logged), vote

    def _epoch(self, batches: Sequence[NDArray[numpy.int64]], observers: Observers, vote: StopVote | None) -> None:
        """Make the steps of one epoch, or what is left of it, and write them down."""
        history, meter = self._history, self._strategy.meter
        first = len(meter.steps)
        self._steps(batches, observers, vote)
        if not history.stopped or self._done % len(self._sampler) == 0:
            self._write_down(first)
            observers.log(**history.epochs[-1] | {"loss": finite(history.epochs[-1]["loss"])})
        if self._done % self._every == 0:
            self._save()

    def _steps(self, batches: Sequence[NDArray[numpy.int64]], observers: Observers, vote: StopVote | None) -> None:
        """One step after the other, until a signal comes."""
        strategy, history = self._strategy, self._history
        # closed here, whatever happens: the garbage collector may run in any thread, its own too, which cannot end itself
        with closing(strategy.loader.batches(self._sampler, batches, strategy.options.accumulate)) as loaded:
            for batch in batches:
                if vote:
                    vote.begin()
                with strategy.meter.step():
                    loss = strategy.step(next(loaded), len(batch))
                self._done += 1
                self._report(len(batch), loss, observers)
                self._drift.after(self._done)
                if vote and (signal := vote.end()):
                    history.stopped = signal
                    break
                if self._done % self._every == 0 and self._done % len(self._sampler):
                    self._save()

    def _report(self, samples: int, loss: float, observers: Observers) -> None:
        if not observers.listening:  # to sum up what steps have cost takes as long as a small step
            return
        meter = self._strategy.meter
        hidden = meter.hidden(-20)
        observers.advance(samples, loss, hidden)
        observers.log(step=self._done, epoch=len(self._history.epochs) + 1, samples=samples, loss=finite(float(loss)),
                      hidden=hidden, **meter.steps[-1])  # fmt: skip

    def _write_down(self, first: int) -> None:
        """Loss and accuracy of an epoch; seconds of the part of it that this run made, from step `first` of the meter on."""
        strategy, history, meter = self._strategy, self._history, self._strategy.meter
        history.losses += strategy.reduce_losses()
        count = (self._done - 1) % len(self._sampler) + 1
        losses, sizes = history.losses[-count:], self._sampler.sizes[:count]
        correct = strategy.count_correct() if self._tests else None
        history.test_accuracy = None if correct is None else correct / self._tests
        epoch: dict[str, Any] = {
            "epoch": len(history.epochs) + 1,
            "loss": sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes),
            "test_accuracy": history.test_accuracy,
            "seconds": meter.total("step_s", first),
        }
        seconds = {name: meter.total(name, first) for name in ("compute_s", "communication_s", "exposed_s")}
        history.epochs.append(epoch | seconds)
        history.cut_short = count < len(self._sampler)

    def _save(self) -> None:
        if self._snapshots:
            self._drift.compare(self._done)
            self._snapshots.save(self._done)
