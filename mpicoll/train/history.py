"""What a training has come to so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """What `fit` writes down and checkpoints keep; `Trainer` documents the fields."""

    losses: list[float] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    #: whether the last of them ended before all its steps were made
    cut_short: bool = False
    test_accuracy: float | None = None
    stopped: str | None = None

    def copy(self) -> History:
        """Losses and epochs so far, which do not grow."""
        return History(list(self.losses), list(self.epochs))
