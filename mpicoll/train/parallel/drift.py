"""Whether the parameters are the same bits on all ranks, as they must be after each step."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from ...errors import MpicollError
from ...support.arrays import Array, module_of
from ...support.checks import groups, ranks_text
from ...support.settings import ALWAYS, OFF

if TYPE_CHECKING:
    from .strategy import Strategy

#: steps from one comparison to the next, unless MPICOLL_CHECK asks for each or none
EVERY = 100
RATE = "learning rate"
_REMEDY = (
    "write to parameters on all ranks alike, let a schedule depend on the step alone, and go on "
    "from a checkpoint (MPICOLL_CHECK=always compares after each step)"
)


class ParametersDiffer(MpicollError, RuntimeError):
    """Ranks of a training have different parameters or learning rates; raised on all."""


class DriftCheck:
    """Compares the parameters of all ranks of one `fit`, by a digest. Collective.

    Ranks of a training have the same parameters by construction, so what it finds is a write by the
    program on some ranks only, a schedule that depends on more than the step, arithmetic that
    differs between machines, or broken memory.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._comm = comm = strategy.comm
        check = comm._context.check
        self._every = {ALWAYS: 1, OFF: 0}.get(check, EVERY) if comm.Get_size() > 1 else 0
        #: the step after which they were the same
        self._good: int | None = None

    def after(self, step: int) -> None:
        """A step was made: compare if it is time."""
        if self._every and step % self._every == 0:
            self.compare(step)

    def compare(self, step: int) -> None:
        """Raise ParametersDiffer on all ranks where they are not the same after `step` steps."""
        if not self._every or self._good == step:
            return
        self._strategy.confirm()
        flat, _ = self._strategy.common()
        everyone = self._comm.allgather((self._rate, digest(flat)))
        if any(facts != everyone[0] for facts in everyone):
            self._complain(step)
        self._good = step

    def _complain(self, step: int) -> None:
        _, by_name = self._strategy.common()
        named = {name: digest(view) for name, view in by_name.items()}
        everyone = self._comm.allgather({RATE: self._rate, **named})
        raise ParametersDiffer(_difference(everyone, step, self._good))

    @property
    def _rate(self) -> float:
        return self._strategy.update.optimizer.rate


def _difference(everyone: Sequence[Mapping[str, Any]], step: int, good: int | None) -> str:
    """The message. everyone: by name, what each rank has.

    >>> everyone = [{"w": 17, "b": 0}, {"w": 5, "b": 0}, {"w": 17, "b": 0}]
    >>> print(_difference(everyone, 40, 30).partition(";")[0])
    after step 40: expected the same parameters on all ranks, got another w on rank 1 than on ranks
    0, 2 (1 of 2 differ)
    """
    where = f"after step {step}" if step else "before the first step"
    differing = [
        name for name in everyone[0] if any(facts[name] != everyone[0][name] for facts in everyone)
    ]
    first = differing[0] if differing else "padding between parameters"
    most, *others = sorted(groups([facts.get(first) for facts in everyone]), key=_most_ranks_first)
    which = ranks_text(sorted(rank for _, ranks in others for rank in ranks))
    text = (
        f"{where}: expected the same parameters on all ranks, got another {first} on {which} than "
        f"on {ranks_text(most[1])}"
    )
    since = ""
    if good is not None:
        when = f"after step {good}" if good else "at the start"
        since = f"; they were the same {when}"
    count = (
        "" if first == RATE else f" ({len(differing)} of {len(everyone[0].keys() - {RATE})} differ)"
    )
    return f"{text}{count}{since}; {_REMEDY}"


def _most_ranks_first(view: tuple[object, list[int]]) -> tuple[int, int]:
    """Where as many ranks have one value as another, that of the lowest rank comes first."""
    return -len(view[1]), view[1][0]


def digest(array: Array) -> int:
    """A number that arrays of the same bits have in common."""
    module = module_of(array)
    on_host = array if module is numpy else module.asnumpy(array)
    return zlib.crc32(on_host.reshape(-1).view("u1").data)
