"""Collective communication for Python on MPI.

>>> import mpicoll
>>> mpicoll.list_algorithms("scatter")
['linear', 'binomial', 'native']

Public names are resolved when they are first used (PEP 562), so that the parts which need no MPI (schedules,
algorithms, the verifier) can be imported where there is none.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Communicator": "mpicoll.communicator",
    "install_abort_hook": "mpicoll.launch",
    "list_algorithms": "mpicoll.algorithms",
    "register": "mpicoll.verify",
    "MpicollError": "mpicoll.errors",
    "ArgumentError": "mpicoll.errors",
    "BufferError": "mpicoll.errors",
    "ScheduleError": "mpicoll.errors",
}
_SUBMODULES = ("algorithms", "schedule", "collectives", "verify", "train")

__all__ = [*_HOME, *_SUBMODULES, "__version__"]


def __getattr__(name):
    if name in _HOME:
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value
    if name in _SUBMODULES:
        return import_module(f"mpicoll.{name}")
    raise AttributeError(f"module 'mpicoll' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
