"""Which algorithm serves a call: explicit argument > environment > tuning table > mpicoll's own table > a short probe.

The choice is a function of what is equal on all ranks: collective, ranks and their nodes, bytes, for reductions op and
type, and settings that were compared when the communicator was made.
"""

from functools import lru_cache
from typing import NamedTuple

from .. import algorithms, collectives
from ..algorithms import NATIVE
from ..errors import ArgumentError
from ..execute import Topology
from ..support import settings
from ..support.units import format_bytes, parse_bytes
from . import table

#: Below this many bytes no probe is made, as a schedule costs microseconds of Python per round, and tables do not speak of
#: calls that are bound each time, as that takes 0.1 ms: MPI's own call wins.
SMALL = 16 << 10
#: Segments of pipelined algorithms, where nothing says better.
SEGMENT_BYTES = 256 << 10


class Request(NamedTuple):
    """What is known of a call when its algorithm is chosen. nbytes: None where only the root knows.

    obstacle: why schedules cannot serve it; empty where they can. native: whether MPI's own call can. once: it is bound
    for this one time, as non-blocking calls are.
    """

    collective: str
    topology: Topology
    nbytes: int | None
    commutative: bool = True
    obstacle: str = ""
    native: bool = True
    once: bool = False

    @property
    def size(self):
        """How many ranks."""
        return len(self.topology.nodes)


class Choice(NamedTuple):
    """The algorithm's word, the pieces its messages are cut into (None: not cut), and why it was taken."""

    name: str
    segment_bytes: int | None
    reason: str

    def __str__(self):
        pieces = f" in pieces of {self.segment_bytes} bytes" if self.segment_bytes else ""
        return f"{self.name}{pieces} ({self.reason})"


def choose(request, explicit=None, segment_bytes=None, probe=None):
    """The `Choice` for a call. Raises ArgumentError where an explicit word is unknown or cannot serve the call.

    segment_bytes: what the call asks for (0: whole messages).
    probe: a function of the request that measures what no table knows, and
    returns a `Choice` or None; it may communicate.
    """
    if explicit is not None:
        refusal = refuses(request, explicit)
        if refusal:
            raise ArgumentError(f"algorithm={explicit!r} cannot serve this {request.collective}: {refusal}")
        choice = Choice(explicit, default_segment(request, explicit), "asked for by the call")
    else:
        choice = _choose(request, probe)
    if segment_bytes is None or choice.name == NATIVE:
        return choice
    return choice._replace(segment_bytes=_checked(segment_bytes) or None)


def _checked(segment_bytes):
    if not hasattr(segment_bytes, "__index__") or segment_bytes < 0:
        raise ArgumentError(f"segment_bytes={segment_bytes!r}: expected a number of bytes, or 0 for whole messages")
    return int(segment_bytes)


def _choose(request, probe):
    notes = []
    for word, segment, reason in _wishes(request):
        refusal = refuses(request, word)
        if not refusal:
            return Choice(word, segment, "; ".join([*notes, reason]))
        notes.append(f"{reason} cannot serve it ({refusal})")
    found = probe(request) if probe and _measurable(request) else None
    choice = found if found and not refuses(request, found.name) else _last_resort(request)
    return choice._replace(reason="; ".join([*notes, choice.reason]))


def _measurable(request):
    """Whether a probe may say more: a large call that both can serve, on a transport that no table speaks of."""
    return (request.native and not request.obstacle and request.size > 1 and (request.nbytes or 0) >= SMALL
            and not any(one.knows(request.topology) for one in _tables()))  # fmt: skip


def _tables():
    return [one for one in (table.user()[0], table.shipped()) if one]


def _wishes(request):
    """(word, segment_bytes, reason) of the environment's entries and the tables' rules, in the order they count."""
    for word, text in _environment(request):
        yield word, default_segment(request, word), f"{settings.ALGORITHM}={text}"
    if request.obstacle or request.size == 1 or request.nbytes is None or (request.once and request.nbytes < SMALL):
        return
    for one in _tables():
        for rule in one.rules(request.collective, request.topology, request.nbytes):
            low = format_bytes(max(rule.low, rule.share * request.size))
            yield rule.algorithm, rule.segment_bytes, f"{one.name}, from {low} bytes"


def default_segment(request, word):
    """The pieces for a word that came without: what the tables use for this transport."""
    if word == NATIVE:
        return None
    known = next(filter(None, (one.segment(request.topology) for one in _tables())), None)
    return known or (SEGMENT_BYTES if algorithms.find(request.collective, word).blocks == "segments" else None)


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


def _last_resort(request):
    if request.native:
        later = " until the first such call has probed" if _measurable(request) and settings.probe() else ""
        return Choice(NATIVE, None, request.obstacle or f"the default here{later}")
    for word in ("binomial", "halving_doubling", "circulant", "pairwise"):
        if word in algorithms.list_algorithms(request.collective) and not refuses(request, word):
            return Choice(word, default_segment(request, word), "MPI cannot reduce this type itself")
    raise ArgumentError(f"no algorithm can serve this {request.collective}: {request.obstacle}")


def native_below(collective, topology):
    """Bytes below which every call there is MPI's own, so that nothing need be asked; 0 where all are asked."""
    if environment() or settings.verbose():
        return 0
    known = [one for one in _tables() if one.knows(topology)]
    return min((one.native_below(collective, topology) for one in known), default=SMALL)


@lru_cache(maxsize=1)
def environment():
    """The rules of MPICOLL_ALGORITHM, read once per process. Raises ArgumentError for a value that cannot be used."""
    return parse_rules(settings.algorithm())


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
