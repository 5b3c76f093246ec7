"""Checkpoints: written whole or not at all, readable by any number of ranks.

May import: errors, support.
"""

from .directory import Checkpoints
from .signals import stop_signals

__all__ = ["Checkpoints", "stop_signals"]
