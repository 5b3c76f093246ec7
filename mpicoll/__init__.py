"""Collective communication for Python on MPI.

>>> import mpicoll
>>> mpicoll.list_algorithms("scatter")
['linear', 'binomial', 'bine', 'native']

Public names are resolved at their first use (PEP 562), so that the parts that need no MPI
(schedules, algorithms, the verifier) can be imported without it.
"""

from importlib import import_module

from .support.version import __version__

TYPE_CHECKING = False  # of `typing`, whose import leaves text in memory: see __main__
if TYPE_CHECKING:  # the same names, for type checkers and editors
    from . import algorithms, collectives, schedule, train, verify
    from .algorithms import AlgorithmName, list_algorithms
    from .buffers import Contributions
    from .calls import Explanation
    from .communicator import Communicator, Plan, Request
    from .errors import (
        ArgumentError,
        BufferError,
        CollectiveMismatch,
        CollectiveTimeout,
        LaunchError,
        MpicollError,
        RankFailure,
        ScheduleError,
        SharedMemoryError,
    )
    from .launch import install_abort_hook
    from .support.gpus import use_local_device
    from .verify import register

__all__ = [
    "AlgorithmName", "ArgumentError", "BufferError", "CollectiveMismatch", "CollectiveTimeout",
    "Communicator", "Contributions", "Explanation", "LaunchError", "MpicollError", "Plan",
    "RankFailure", "Request", "ScheduleError", "SharedMemoryError", "__version__", "algorithms",
    "collectives", "install_abort_hook", "list_algorithms", "register", "schedule", "train",
    "use_local_device", "verify",
]

_HOME = {
    "AlgorithmName": "algorithms",
    "ArgumentError": "errors",
    "BufferError": "errors",
    "CollectiveMismatch": "errors",
    "CollectiveTimeout": "errors",
    "Communicator": "communicator",
    "Contributions": "buffers",
    "Explanation": "calls",
    "LaunchError": "errors",
    "MpicollError": "errors",
    "Plan": "communicator",
    "RankFailure": "errors",
    "Request": "communicator",
    "ScheduleError": "errors",
    "SharedMemoryError": "errors",
    "install_abort_hook": "launch",
    "list_algorithms": "algorithms",
    "register": "verify",
    "use_local_device": "support.gpus",
}
_ON_MPI = ("Communicator", "Explanation", "Plan", "Request", "install_abort_hook")
_SUBMODULES = ("algorithms", "collectives", "schedule", "train", "verify")


def _resolve(name: str) -> object:
    if name in _ON_MPI:
        from .support.optional import require

        require("mpi4py.MPI", f"mpicoll.{name}")
    if name in _HOME:
        value = globals()[name] = getattr(import_module(f"mpicoll.{_HOME[name]}"), name)
        return value
    if name in _SUBMODULES:
        return import_module(f"mpicoll.{name}")
    raise AttributeError(f"module 'mpicoll' has no attribute {name!r}")


if not TYPE_CHECKING:  # to whom every misspelt name would be one that it answers for
    __getattr__ = _resolve


def __dir__() -> list[str]:
    return sorted(__all__)
