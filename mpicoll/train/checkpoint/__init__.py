"""Checkpoints: written whole or not at all, readable by any number of ranks."""

from .directory import Checkpoints
from .format import Checkpoint
from .signals import Stop, stop_signals

__all__ = ["Checkpoint", "Checkpoints", "Stop", "stop_signals"]
