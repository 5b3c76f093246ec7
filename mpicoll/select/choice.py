"""Which algorithm serves a call: explicit argument > environment > tuning table > mpicoll's own table > a short probe.

The choice is a function of what is equal on all ranks: collective, ranks and their nodes, bytes, for reductions op and
type, and settings that were compared when the communicator was made.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple

from .. import algorithms, collectives
from ..algorithms import LIBRARIES, NATIVE
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
#: links for the cost model, where it has to decide and `mpicoll tune` has not measured: seconds per message, bytes per second,
#: seconds per byte that is reduced
WITHIN_NODE, BETWEEN_NODES = table.Link(15e-6, 4e9, 1e-10), table.Link(100e-6, 125e6, 1e-10)


class Query(NamedTuple):
    """What is known of a call when its algorithm is chosen. nbytes: None where only the root knows.

    obstacle, unfit, nccl: why schedules, MPI's own call, and NCCL cannot serve it; empty where they can. once: it is
    bound for this one time, as non-blocking calls are. uneven: its blocks may have any sizes, which only their two ranks know.
    canonical: elements may be added in the canonical order alone.
    """

    collective: collectives.CollectiveName
    topology: Topology
    nbytes: int | None
    commutative: bool = True
    obstacle: str = ""
    unfit: str = ""
    nccl: str = "it is asked for by calls alone"
    once: bool = False
    uneven: bool = False
    canonical: bool = False

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.topology.nodes)


class Choice(NamedTuple):
    """The algorithm, the pieces its messages are cut into (None: not cut), and why it was taken."""

    name: str
    segment_bytes: int | None
    reason: str

    def __str__(self) -> str:
        pieces = f" in pieces of {self.segment_bytes} bytes" if self.segment_bytes else ""
        return f"{self.name}{pieces} ({self.reason})"


Probe = Callable[[Query], Choice | None]


def choose(
    query: Query, explicit: str | None = None, segment_bytes: int | None = None, probe: Probe | None = None
) -> Choice:
    """The `Choice` for a call. Raises ArgumentError where an explicit algorithm is unknown or cannot serve the call.

    segment_bytes: what the call asks for (0: whole messages).
    probe: measures what no table knows; it may communicate.
    """
    if explicit is not None:
        # how much MPI can move it says itself: its count is that of the caller's type
        moved = explicit == NATIVE and not collectives.find(query.collective).reduces
        refusal = "" if moved else refuses(query, explicit)
        if refusal:
            raise ArgumentError(f"algorithm={explicit!r} cannot serve this {query.collective}: {refusal}")
        choice = Choice(explicit, default_segment(query, explicit), "asked for by the call")
    else:
        choice = _choose(query, probe)
    if segment_bytes is None or choice.name in LIBRARIES:
        return choice
    return choice._replace(segment_bytes=_checked(segment_bytes) or None)


def _checked(segment_bytes: Any) -> int:
    if not hasattr(segment_bytes, "__index__") or segment_bytes < 0:
        raise ArgumentError(f"segment_bytes={segment_bytes!r}: expected a number of bytes, or 0 for whole messages")
    return int(segment_bytes)


def _choose(query: Query, probe: Probe | None) -> Choice:
    notes: list[str] = []
    for wish in _wishes(query):
        refusal = refuses(query, wish.name)
        if not refusal:
            return wish._replace(reason="; ".join([*notes, wish.reason]))
        notes.append(f"{wish.reason} cannot serve it ({refusal})")
    found = probe(query) if probe and _measurable(query) else None
    choice = found if found and not refuses(query, found.name) else _last_resort(query)
    if any(f"({choice.reason})" in note for note in notes):  # said already
        choice = choice._replace(reason="of those that can, the fastest by the cost model")
    return choice._replace(reason="; ".join([*notes, choice.reason]))


def _measurable(query: Query) -> bool:
    """Whether a probe may say more: a large call that both can serve, on a transport that no table speaks of."""
    if query.unfit or query.obstacle or query.size == 1 or (query.nbytes or 0) < SMALL:
        return False
    return not any(one.knows(query.topology) for one in _tables())


def _tables() -> list[table.Table]:
    return [one for one in (table.user()[0], table.shipped()) if one]


def reduces_on_device(dtype: str, nbytes: int, default: bool) -> bool:
    """Whether so many bytes of this type are reduced on the device although their messages pass through the host.

    default: where the user's table does not say.
    """
    given, _ = table.user()
    low = given.reduce_on_device.get(dtype) if given else None
    return default if low is None else nbytes >= low


def _wishes(query: Query) -> Iterator[Choice]:
    """What the environment's rules and the tables' rules name, in the order they count."""
    for asked in environment_rules():
        if asked.speaks_of(query):
            segment = default_segment(query, asked.algorithm)
            yield Choice(asked.algorithm, segment, f"{settings.ALGORITHM}={asked.text}")
    if query.obstacle or query.size == 1 or query.nbytes is None or (query.once and query.nbytes < SMALL):
        return
    for one in _tables():
        for rule in one.rules(query.collective, query.topology, query.nbytes):
            low = format_bytes(int(max(rule.low, rule.share * query.size)))
            yield Choice(rule.algorithm, rule.segment_bytes, f"{one.name}, from {low} bytes")


def default_segment(query: Query, algorithm: str) -> int | None:
    """The pieces for an algorithm that came without: what the tables use for this transport."""
    if algorithm in LIBRARIES:
        return None
    known = next(filter(None, (one.segment(query.topology) for one in _tables())), None)
    pipelined = algorithms.find(query.collective, algorithm).blocks == "segments"
    return known or (SEGMENT_BYTES if pipelined else None)


def refuses(query: Query, algorithm: str) -> str:
    """Why this algorithm cannot serve the call; empty where it can. Raises ArgumentError for an unknown one."""
    if algorithm == NATIVE:
        return query.unfit
    if algorithm in algorithms.library_names(query.collective):
        return query.nccl
    entry = algorithms.find(query.collective, algorithm)
    if query.obstacle:
        return query.obstacle
    if query.uneven and entry.equal_blocks:
        return f"blocks may have any sizes, and {algorithm} moves blocks of one size"
    if query.canonical and not entry.canonical:
        served = ", ".join(one.name for one in algorithms.registered(query.collective) if one.canonical)
        return f"the communicator is deterministic, and {algorithm} adds in an order of its own; in the canonical one: {served}"
    if not query.commutative and not entry.ordered:
        ordered = ", ".join(one.name for one in algorithms.registered(query.collective) if one.ordered)
        return f"the op is not commutative, and {algorithm} does not keep rank order; these do: {ordered}"
    return ""


def _last_resort(query: Query) -> Choice:
    if not query.unfit:
        later = " until the first such call has probed" if _measurable(query) and settings.probe() else ""
        return Choice(NATIVE, None, query.obstacle or f"the default here{later}")
    able = [one for one in algorithms.registered(query.collective) if not refuses(query, one.name)]
    if able:
        best = min(able, key=partial(_predicted, query)).name
        return Choice(best, default_segment(query, best), query.unfit)
    raise ArgumentError(f"no algorithm can serve this {query.collective}: {query.obstacle}; {query.unfit}")


def _predicted(query: Query, entry: algorithms.Algorithm) -> tuple[float, bool]:
    """Seconds by the cost model, infinite where it has no formula; of two alike the one for this transport comes first."""
    within = query.topology.node_count == 1
    name = "pairwise" if entry.name == "direct" and within else entry.name  # the same messages, all in one round
    link = table.link(query.topology) or (WITHIN_NODE if within else BETWEEN_NODES)
    nbytes, segment = query.nbytes or 0, default_segment(query, entry.name)
    segments = max(1, -(-nbytes // segment)) if segment else 1
    seconds = link.seconds(query.collective, name, query.size, nbytes, segments)
    return inf if seconds is None else seconds, entry.cuttable == within


def native_below(collective: str, topology: Topology) -> float:
    """Bytes below which every call there is MPI's own, so that nothing need be asked; 0 where all are asked."""
    if environment_rules() or settings.verbose():
        return 0
    known = [one for one in _tables() if one.knows(topology)]
    return min((one.native_below(collective, topology) for one in known), default=SMALL)


def is_named(collective: str, algorithm: str) -> bool:
    """Whether a rule of the environment or of the user's table names this algorithm."""
    found = table.user()[0]
    rules = [(rule.collective, rule.algorithm) for rule in environment_rules()]
    rules += [(entry.collective, rule.algorithm) for entry in (found.entries if found else ()) for rule in entry.rules]
    return (collective, algorithm) in rules


class EnvironmentRule(NamedTuple):
    """An entry of MPICOLL_ALGORITHM: which algorithm serves a collective from `low` to below `high` bytes."""

    collective: collectives.CollectiveName
    low: float
    high: float
    algorithm: str
    text: str

    def speaks_of(self, query: Query) -> bool:
        """Whether it is about such a call; a rule for all sizes is also about sizes that nobody knows."""
        if self.collective != query.collective:
            return False
        if (self.low, self.high) == (0, inf):
            return True
        return query.nbytes is not None and self.low <= query.nbytes < self.high


@lru_cache(maxsize=1)
def environment_rules() -> list[EnvironmentRule]:
    """The rules of MPICOLL_ALGORITHM, read once per process. Raises ArgumentError for a value that cannot be used."""
    return parse_rules(settings.algorithm())


def parse_rules(text: str) -> list[EnvironmentRule]:
    """The entries of MPICOLL_ALGORITHM.

    >>> parse_rules("allreduce:0-8k:native")[0].high
    8192
    """
    return [_parse_rule(entry) for entry in filter(None, map(str.strip, text.split(",")))]


def _parse_rule(text: str) -> EnvironmentRule:
    fields, low, high = text.split(":"), 0.0, inf
    try:
        if len(fields) not in (2, 3):
            raise ArgumentError("expected collective:algorithm or collective:from-below:algorithm")
        collective, algorithm = collectives.find(fields[0]).name, fields[-1]
        if len(fields) == 3:
            low, high = map(parse_bytes, fields[1].split("-", 1))
        algorithms.require(collective, algorithm)
    except (ArgumentError, ValueError) as error:
        example = "allreduce:0-8k:native,allreduce:8k-inf:ring"
        raise ArgumentError(f"{settings.ALGORITHM}: cannot use {text!r}: {error}; an example: {example}") from None
    return EnvironmentRule(collective, low, high, algorithm, text)
