"""The errors mpicoll raises: each says what was expected, what came, and what to do."""

import builtins
from collections.abc import Iterable


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """The end of an error about an unknown word: the nearest valid word, or "".

    >>> did_you_mean("rign", ["ring", "tree"]), did_you_mean("xyz", ["ring", "tree"])
    (' (did you mean ring?)', '')
    """
    from difflib import get_close_matches  # for a program that is wrong; others need not load it

    known = {one.lower(): one for one in words}
    near = get_close_matches(str(word)[:80].lower(), known, n=1)
    return f" (did you mean {known[near[0]]}?)" if near else ""


class MpicollError(RuntimeError):
    """Base of all errors that mpicoll raises itself. A RuntimeError, as PyTorch's and MPI's are."""


class ArgumentError(MpicollError, ValueError):
    """An argument or an environment variable has a value that cannot be used."""


class BufferError(MpicollError, builtins.BufferError, TypeError, ValueError):
    """A buffer has the wrong type, size, layout or access for this call.

    It is also what Python, mpi4py and PyTorch raise: the builtin BufferError, a TypeError, a
    ValueError, and a RuntimeError.
    """


class TypeCodeError(BufferError, KeyError):
    """A letter in a buffer's description names no datatype: a KeyError too, as mpi4py's."""

    __str__ = Exception.__str__  # a KeyError's is in quotes


class CollectiveMismatch(MpicollError):
    """Ranks of a communicator make different calls.

    All ranks raise it; the message names each group of ranks and its call.
    """


class CollectiveTimeout(MpicollError, TimeoutError):
    """A collective made no progress for its timeout; the message says which rank waits for which.

    It is also what Python and PyTorch would raise: a TimeoutError and a RuntimeError.
    """


class SharedMemoryError(MpicollError, OSError):
    """A rank has no more memory that the ranks of its node can share, or cannot map that of others.

    It is also what the system raises: an OSError.
    """


class RankFailure(MpicollError):
    """Ranks died; raised by whoever waits for them, and by whoever waits for those who noticed.

    Attributes
    ----------
    ranks : tuple of int
        The dead ranks, in the communicator of the call; empty where another rank noticed, and this
        rank does not know them yet.
    """

    def __init__(self, text: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(text, ranks)
        self.ranks = ranks

    def __str__(self) -> str:
        return str(self.args[0])


class ScheduleError(MpicollError, ValueError):
    """A schedule violates its collective; the message names the rank, round and block."""


class LaunchError(MpicollError):
    """The program was started in a way that cannot work (N separate worlds of one rank, say)."""
