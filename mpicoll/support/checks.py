"""Checks of arguments: of one rank's values, and that all ranks have the same ones."""

from ..errors import ArgumentError


def check(name, value, good, expected):
    """Raise ArgumentError unless `good`."""
    if not good:
        raise ArgumentError(f"{name}: expected {expected}, got {value!r}")


def check_integer(name, value, least):
    """Raise ArgumentError unless `value` is an integer (of any type that counts) of at least `least`."""
    check(name, value, hasattr(value, "__index__") and value >= least, f"an integer of at least {least}")


def check_word(name, value, words):
    """Raise ArgumentError unless `value` is one of `words`."""
    check(name, value, value in words, f"one of {', '.join(words)}")


def agree(comm, facts):
    """Raise ArgumentError on every rank of `comm` if their `facts` (a dict) differ; it shows the first difference.

    Collective: one allgather of small Python objects.
    """
    everyone = comm.allgather(facts)
    for rank, theirs in enumerate(everyone):
        for name in [*everyone[0], *theirs]:
            ours, other = everyone[0].get(name, "missing"), theirs.get(name, "missing")
            if ours != other:
                raise ArgumentError(f"ranks differ: {name} is {ours} on rank 0 but {other} on rank {rank}")
