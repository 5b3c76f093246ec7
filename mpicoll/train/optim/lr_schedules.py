"""Learning-rate schedules: factors of the learning rate by step, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import ArgumentError
from ...support.checks import check, check_integer, number_of

#: a factor for the learning rate, by the number of the step, counted from 1
Schedule: TypeAlias = Callable[[int], float]

FORMS = "constant, cosine:STEPS, linear:STEPS or step:EVERY[,FACTOR]"


@dataclass(frozen=True)
class Warmup:
    """From 1/steps to 1 in equal steps, then another schedule.

    The gradual warm-up of Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2.2.

    Parameters
    ----------
    steps : int
        At least 1.
    then : callable, optional
        The schedule after them, which counts its steps from 1 again; by default 1.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.

    Examples
    --------
    >>> [Warmup(4, StepDecay(2))(step) for step in range(1, 8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.1]
    """

    steps: int
    then: Schedule | None = None

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1)
        check(
            "then",
            self.then,
            self.then is None or callable(self.then),
            "None or a function of the step",
        )

    def __call__(self, step: int) -> float:
        if step <= self.steps:
            return step / self.steps
        return 1.0 if self.then is None else self.then(step - self.steps)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1, in the first step, to `final`, reached after `steps` steps and kept.

    One period of SGDR without restarts: Loshchilov and Hutter (2017), equation 5.

    Parameters
    ----------
    steps : int
        At least 1.
    final : float
        From 0 to 1.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.

    Examples
    --------
    >>> [round(Cosine(4)(step), 3) for step in range(1, 7)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_decay(self)

    def __call__(self, step: int) -> float:
        return (
            self.final + (1 - self.final) * (1 + math.cos(math.pi * _passed(step, self.steps))) / 2
        )


@dataclass(frozen=True)
class Linear:
    """A straight line from 1, in the first step, to `final`, reached after `steps` steps and kept.

    Parameters
    ----------
    steps : int
        At least 1.
    final : float
        From 0 to 1.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.

    Examples
    --------
    >>> [Linear(4, final=0.2)(step) for step in range(1, 7)]
    [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    """

    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_decay(self)

    def __call__(self, step: int) -> float:
        passed = _passed(step, self.steps)
        return (1 - passed) + passed * self.final


@dataclass(frozen=True)
class StepDecay:
    """Multiplied by `factor` after every `every` steps.

    Parameters
    ----------
    every : int
        At least 1.
    factor : float
        Above 0 and at most 1.

    Raises
    ------
    ArgumentError
        For a value that cannot be used.

    Examples
    --------
    >>> [StepDecay(2, 0.5)(step) for step in range(1, 7)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_integer("every", self.every, 1)
        check(
            "factor", self.factor, 0 < number_of(self.factor) <= 1, "a number above 0 and at most 1"
        )

    def __call__(self, step: int) -> float:
        return self.factor ** ((step - 1) // self.every)


def parse(text: str, warmup: int = 0) -> Schedule | None:
    """The schedule that the command line's ``--schedule`` names.

    Parameters
    ----------
    text : str
        ``constant``, ``cosine:STEPS``, ``linear:STEPS`` or ``step:EVERY[,FACTOR]``, counted from
        the end of the warm-up.
    warmup : int
        Steps of `Warmup` before it.

    Returns
    -------
    callable or None
        What optimizers take as `schedule`; None where it is constant.

    Raises
    ------
    ArgumentError
        For another text; it names the forms allowed.

    Examples
    --------
    >>> parse("cosine:1000", warmup=50)
    Warmup(steps=50, then=Cosine(steps=1000, final=0.0))
    """
    check_integer("warmup", warmup, 0)
    name, _, rest = text.partition(":")
    kind, most = _KINDS.get(name, (Warmup, 0))
    then = None if text == "constant" else _build(text, kind, most, rest.split(","))
    return Warmup(warmup, then) if warmup else then


#: by name, with the most numbers that each takes
_KINDS: dict[str, tuple[Callable[..., Schedule], int]] = {
    "cosine": (Cosine, 1),
    "linear": (Linear, 1),
    "step": (StepDecay, 2),
}


def _build(text: str, kind: Callable[..., Schedule], most: int, numbers: Sequence[str]) -> Schedule:
    """`kind` of a whole number and perhaps a number, at most `most` of them."""
    try:
        if not 1 <= len(numbers) <= most:
            raise ValueError("no such form")
        return kind(int(numbers[0]), *map(float, numbers[1:]))
    except ArgumentError as error:
        raise ArgumentError(f"schedule: in {text!r}, {error}") from None
    except ValueError:
        raise ArgumentError(f"schedule: expected {FORMS}, got {text!r}") from None


def _check_decay(schedule: Cosine | Linear) -> None:
    check_integer("steps", schedule.steps, 1)
    good = 0 <= number_of(schedule.final) <= 1
    check("final", schedule.final, good, "a number from 0 to 1")


def _passed(step: int, steps: int) -> float:
    """The part of `steps` that is over when `step` begins: 0 to 1."""
    return min(step - 1, steps) / steps
