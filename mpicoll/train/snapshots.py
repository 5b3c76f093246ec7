"""What the checkpoints of a training hold, and going on from one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy

from ..support.checks import check
from .checkpoint import Checkpoint, Checkpoints
from .history import History
from .parallel import Strategy

#: the vector of a checkpoint that has the loss of each step
_LOSSES = "losses"


class Snapshots:
    """The checkpoints of one training in a directory. Collective.

    data: facts of the data set and its order, which must be those of a checkpoint to go on from it.
    resume: whether the directory may have checkpoints; those of another training would be mixed
    with this one's.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int,
        resume: bool,
        strategy: Strategy,
        history: History,
        data: Mapping[str, Any],
    ) -> None:
        self._strategy = strategy
        self._history = history
        self._data = data
        self._checkpoints = Checkpoints(directory, strategy.comm, keep)
        self._saved: int | None = None  # step of the newest
        empty = resume or not self._checkpoints.steps()
        check(
            "checkpoint",
            directory,
            empty,
            "an empty directory, or resume=True (--resume) to go on from what is there",
        )

    def locked(self) -> AbstractContextManager[None]:
        """While no other training may write to the directory. Collective."""
        return self._checkpoints.locked()

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint and a training that goes on from it have in common."""
        strategy = self._strategy
        optimizer = type(strategy.update.optimizer).__name__
        return {"layers": strategy.model.describe(), "optimizer": optimizer, "data": self._data}

    def save(self, step: int) -> None:
        """Write a checkpoint of all steps so far, unless there is one."""
        if self._saved == step:
            return
        strategy = self._strategy
        history = self._history
        history.losses += strategy.reduce_losses()
        scale = strategy.update.scale
        state = strategy.vectors()
        totals = {name: total for name, (total, _) in state.items()}
        vectors = {name: pieces for name, (_, pieces) in state.items()}
        # a number a step, which the manifest, read whole to look at a checkpoint, would grow with
        own_losses = [(0, numpy.array(history.losses, "f8"))] if strategy.rank == 0 else []
        meta = self._identity() | {
            "updates": strategy.update.optimizer.steps,
            "epochs": history.epochs,
            "cut_short": history.cut_short,
            "precision": strategy.options.precision,
            "scale": None if scale is None else scale.state(),
        }
        self._checkpoints.save(
            step,
            {**vectors, _LOSSES: own_losses},
            {**totals, _LOSSES: len(history.losses)},
            meta,
        )
        self._saved = step

    def resume(self) -> int:
        """Take over the newest whole checkpoint, if there is one; returns the steps done."""
        checkpoint = self._checkpoints.load(self._accept)
        if checkpoint is None:
            return 0
        strategy = self._strategy
        history = self._history
        meta = checkpoint.meta
        if strategy.survival is not None:
            strategy.survival.whole = False
        strategy.forget()

        def restore() -> None:
            history.losses = _losses_of(checkpoint)
            strategy.restore(checkpoint, meta["updates"])

        self._checkpoints.together(f"read {checkpoint.path}", restore)
        strategy.replaced()
        if strategy.update.scale is not None and meta["scale"] is not None:
            strategy.update.scale.restore(meta["scale"])
        history.epochs = list(meta["epochs"])
        history.cut_short = bool(meta.get("cut_short"))
        history.test_accuracy = history.epochs[-1]["test_accuracy"] if history.epochs else None
        self._saved = checkpoint.step
        if strategy.rank == 0:
            print(
                f"mpicoll: resumed from {checkpoint.path}, step {checkpoint.step}",
                file=sys.stderr,
                flush=True,
            )
        return checkpoint.step

    def _accept(self, meta: Mapping[str, Any]) -> None:
        """Raise ArgumentError for a checkpoint of another model, data set or optimizer."""
        for name, value in self._identity().items():
            check(
                f"checkpoint: {name}",
                meta.get(name),
                meta.get(name) == value,
                f"this run's {value}; use another directory",
            )
        updates, epochs, scale = (meta.get(name) for name in ("updates", "epochs", "scale"))
        _check_written(
            "updates", updates, isinstance(updates, int) and updates >= 0, "a number of updates"
        )
        tested = isinstance(epochs, list) and all(
            isinstance(epoch, dict) and "test_accuracy" in epoch for epoch in epochs
        )
        _check_written("epochs", epochs, tested, "a list of epochs with their test_accuracy")
        figures = isinstance(scale, dict) and all(
            _is_number(scale.get(name)) for name in ("value", "good", "skipped")
        )
        _check_written(
            "scale",
            scale,
            scale is None or figures,
            "value, good and skipped of a loss scale, or null",
        )


def _losses_of(checkpoint: Checkpoint) -> list[float]:
    """The loss of each step; earlier versions wrote them down in the manifest."""
    if _LOSSES in checkpoint.totals:
        found: list[float] = checkpoint.read(_LOSSES, 0, checkpoint.totals[_LOSSES]).tolist()
        return found
    written = checkpoint.meta.get(_LOSSES)
    are_numbers = isinstance(written, list) and all(map(_is_number, written))
    _check_written(_LOSSES, written, are_numbers, "a number for each step")
    return list(written)


def _check_written(name: str, value: Any, good: bool, expected: str) -> None:
    check(f"checkpoint: {name}", value, good, f"{expected}; was it changed by hand?")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
