"""Which algorithm serves a call: explicit argument > environment > a plain size rule.

The choice is a function of what MPI makes equal on all ranks: collective, ranks, bytes, and for reductions op and type.
"""

import os
from functools import lru_cache
from typing import NamedTuple

from . import algorithms, collectives
from .algorithms import NATIVE
from .errors import ArgumentError
from .units import parse_bytes

#: Below this many bytes MPI's own call is taken: a schedule costs microseconds of Python per round.
SMALL = 64 << 10
#: What larger calls take, where a schedule can serve them. Rooted collectives stay with MPI.
LARGE = {"allreduce": "circulant", "reduce_scatter": "circulant", "allgather": "circulant"}
#: Segments of pipelined algorithms, where the call does not say.
SEGMENT_BYTES = 256 << 10


class Request(NamedTuple):
    """What is known of a call when its algorithm is chosen. nbytes: None where only the root knows.

    schedulable: whether schedules can serve it at all; obstacle: why not. native: whether MPI's own call can.
    """

    collective: str
    size: int
    nbytes: int | None
    commutative: bool = True
    obstacle: str = ""
    native: bool = True


class Choice(NamedTuple):
    """The algorithm's word, and why it was taken."""

    name: str
    reason: str


def choose(request, explicit=None):
    """The `Choice` for a call. Raises ArgumentError where an explicit word is unknown or cannot serve the call."""
    if explicit is not None:
        refusal = refuses(request, explicit)
        if refusal:
            raise ArgumentError(f"algorithm={explicit!r} cannot serve this {request.collective}: {refusal}")
        return Choice(explicit, "asked for by the call")
    notes = []
    for word, text in _environment(request):
        refusal = refuses(request, word)
        if not refusal:
            return Choice(word, f"MPICOLL_ALGORITHM={text}")
        notes.append(f"MPICOLL_ALGORITHM={text} cannot serve it ({refusal})")
    choice = _by_size(request)
    return choice._replace(reason="; ".join([*notes, choice.reason]))


def refuses(request, word):
    """Why this word cannot serve the call; empty where it can. Raises ArgumentError for an unknown word."""
    if word == NATIVE:
        return "" if request.native else "MPI has no such reduction"
    algorithm = algorithms.find(request.collective, word)
    if request.obstacle:
        return request.obstacle
    if not request.commutative and not algorithm.ordered:
        ordered = [a.name for a in algorithms.registered(request.collective) if a.ordered]
        return f"the op is not commutative, and {word} does not keep rank order; these do: {', '.join(ordered)}"
    return ""


def _by_size(request):
    if request.native:
        if request.obstacle:
            return Choice(NATIVE, request.obstacle)
        word = LARGE.get(request.collective)
        if request.size == 1 or request.nbytes is None or word is None or refuses(request, word):
            return Choice(NATIVE, "the default here")
        if request.nbytes < SMALL:
            return Choice(NATIVE, f"less than {SMALL} bytes")
        return Choice(word, f"{SMALL} bytes or more")
    for word in ("binomial", "halving_doubling", "circulant", "pairwise"):
        if word in algorithms.list_algorithms(request.collective) and not refuses(request, word):
            return Choice(word, "MPI cannot reduce this type itself")
    raise ArgumentError(f"no algorithm can serve this {request.collective}: {request.obstacle}")


@lru_cache(maxsize=1)
def environment():
    """The rules of MPICOLL_ALGORITHM, read once per process. Raises ArgumentError for a value that cannot be used."""
    return parse_rules(os.environ.get("MPICOLL_ALGORITHM", ""))


def _environment(request):
    for collective, low, high, word, text in environment():
        if collective == request.collective and (
            (low, high) == (0, float("inf")) or (request.nbytes is not None and low <= request.nbytes < high)
        ):
            yield word, text


def parse_rules(text):
    """The entries of MPICOLL_ALGORITHM: (collective, from bytes, below bytes, word, text) of each.

    >>> parse_rules("allreduce:0-8k:native")
    [('allreduce', 0, 8192, 'native', 'allreduce:0-8k:native')]
    """
    rules = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        fields = entry.split(":")
        try:
            if len(fields) not in (2, 3):
                raise ArgumentError("expected collective:word or collective:from-below:word")
            collective, word = fields[0], fields[-1]
            low, high = map(parse_bytes, fields[1].split("-", 1)) if len(fields) == 3 else (0, float("inf"))
            collectives.find(collective)
            if word != NATIVE:
                algorithms.find(collective, word)
        except (ArgumentError, ValueError) as error:
            example = "allreduce:0-8k:native,allreduce:8k-inf:ring"
            raise ArgumentError(f"MPICOLL_ALGORITHM: cannot use {entry!r}: {error}; an example: {example}") from None
        rules.append((collective, low, high, word, entry))
    return rules
