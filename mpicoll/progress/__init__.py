"""Progress of calls that do not block: tasks, the thread that advances them, and how waits nap."""

from .arithmetic import calls_as_mpi_computes
from .engine import DELAY, LARGE_DELAY, PROGRESS
from .rhythm import NAP, Rhythm
from .stall import Stall
from .tasks import WINDOW, Queue, Task, Unattended, until_done

__all__ = [
    "DELAY", "LARGE_DELAY", "NAP", "PROGRESS", "WINDOW", "Queue", "Rhythm", "Stall", "Task",
    "Unattended",
    "calls_as_mpi_computes", "until_done",
]  # fmt: skip
