"""What this process is doing: told to other ranks, to a person (SIGUSR2), and to reports."""

from .watcher import WATCHER

__all__ = ["WATCHER"]
