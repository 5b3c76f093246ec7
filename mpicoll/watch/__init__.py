"""What this process is doing, told while it is stuck: to other ranks, to a person who sends SIGUSR2, to a report.

May import: errors, support, shared_memory, execute, launch, reports.
"""

from .watcher import WATCHER

__all__ = ["WATCHER"]
