"""Checks of arguments, on a rank and between ranks, and errors that all ranks raise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ArgumentError, MpicollError, did_you_mean

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def text_of(value: object) -> str:
    """The repr of a value without addresses: the same in every process.

    It is for facts that ranks and checkpoints compare.

    >>> text_of([object()])
    '[<object object>]'
    """
    return _ADDRESS.sub("", repr(value))


def check(name: str, value: object, good: object, expected: str) -> None:
    """Raise ArgumentError unless `good`."""
    if not good:
        raise ArgumentError(f"{name}: expected {expected}, got {value!r}")


def number_of(value: Any) -> float:
    """The value as a float, to be compared; nan where it is no number, as a text is none.

    >>> number_of(2), number_of("2")
    (2.0, nan)
    """
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        return math.nan


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise ArgumentError unless `value` is an integer (with `__index__`) of at least `least`."""
    good = hasattr(value, "__index__") and value >= least
    check(name, value, good, f"an integer of at least {least}")


def check_word(name: str, value: object, words: Iterable[str]) -> None:
    """Raise ArgumentError unless `value` is one of `words`."""
    words = list(words)
    if value not in words:
        hint = did_you_mean(value, words)
        raise ArgumentError(f"{name}: expected one of {', '.join(words)}, got {value!r}{hint}")


def raise_everywhere(comm: MPI.Intracomm, error: MpicollError | None) -> None:
    """Raise the error of the lowest failed rank on every rank, so that no rank waits for it.

    Collective: one allgather of small Python objects.
    """
    for first in comm.allgather(error):
        if first is not None:
            raise first


def together(comm: MPI.Intracomm, act: Callable[[], Result]) -> Result:
    """The result of `act()` on this rank; if a rank raises an MpicollError, every rank raises it.

    Collective: one allgather of small Python objects.
    """
    failure: MpicollError | None = None
    try:
        result = act()
    except MpicollError as error:
        failure = error
    raise_everywhere(comm, failure)
    return result


def agree(comm: MPI.Intracomm, facts: Mapping[str, object]) -> None:
    """Raise ArgumentError on every rank of `comm` if their facts differ, with the first difference.

    Collective: one allgather of small Python objects.
    """
    must_agree(comm.allgather(facts))


def must_agree(
    everyone: Sequence[Mapping[str, object]], remedy: str = "Give the same on all ranks"
) -> None:
    """Raise ArgumentError if the facts of the ranks differ; it shows the first difference.

    >>> must_agree([{"steps": 5}, {"steps": 6}, {"steps": 5}], "Fix it")
    Traceback (most recent call last):
    mpicoll.errors.ArgumentError: ranks disagree about steps: ranks 0, 2: 5; rank 1: 6. Fix it
    """
    for name in dict.fromkeys(name for facts in everyone for name in facts):
        views = groups([facts.get(name, "missing") for facts in everyone])
        if len(views) > 1:
            text = "; ".join(f"{ranks_text(ranks)}: {value}" for value, ranks in views)
            raise ArgumentError(f"ranks disagree about {name}: {text}. {remedy}")


def groups(values: Sequence[object]) -> list[tuple[object, list[int]]]:
    """Each value, and the ranks that have it; compared, since not every value can be hashed."""
    views: list[tuple[object, list[int]]] = []
    for rank, value in enumerate(values):
        for other, ranks in views:
            if _is_same(other, value):
                ranks.append(rank)
                break
        else:
            views.append((value, [rank]))
    return views


def _is_same(a: object, b: object) -> bool:
    """Whether they are equal, or both nan."""
    return bool(a == b or (a != a and b != b))


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as text: "rank 3", "ranks 0, 2"."""
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
