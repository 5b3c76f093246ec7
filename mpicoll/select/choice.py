"""The choice of an algorithm for a call.

In this order: explicit argument, environment, tuning table, mpicoll's own table, a short probe.

The choice depends only on what is equal on all ranks: collective, ranks and their nodes, bytes, op
and type of reductions, and settings that were compared when the communicator was created.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple

from .. import algorithms
from ..algorithms import LIBRARIES, NATIVE, AnyCollective
from ..errors import ArgumentError
from ..graphs import NEIGHBORHOODS
from ..schedule import SEGMENT_BYTES, segment_count
from ..support import settings
from ..support.units import format_bytes, parse_bytes
from ..transport import Topology
from . import table

#: Below this many bytes MPI's own call is faster: a schedule takes microseconds of Python per
#: round, so no probe is made, and 0.1 ms to bind, so tables do not hold for calls bound only once.
SMALL = 16 << 10
#: bytes from which on codes in the place of elements save time, where no table says it
COMPRESSED_FROM = 64 << 10
#: links for the cost model where `mpicoll tune` has not measured
WITHIN_NODE = table.Link(alpha=15e-6, bandwidth=4e9, gamma=1e-10)
BETWEEN_NODES = table.Link(alpha=100e-6, bandwidth=125e6, gamma=1e-10)


class Query(NamedTuple):
    """What the choice of an algorithm for a call depends on."""

    collective: AnyCollective
    topology: Topology
    #: None where only the root knows
    nbytes: int | None
    commutative: bool = True
    #: why schedules cannot serve it, or ""
    obstacle: str = ""
    #: why MPI's own call cannot serve it, or ""
    unfit: str = ""
    #: why NCCL cannot serve it, or ""
    nccl: str = "it is asked for by calls alone"
    #: it is bound for one execution, as non-blocking calls are
    once: bool = False
    #: its blocks may have any sizes, which only sender and receiver know
    uneven: bool = False
    #: each of its blocks has its own datatype
    typed: bool = False
    #: elements have to be added in the canonical order
    canonical: bool = False
    #: what executes its schedules on all ranks
    engine: str = settings.PYTHON
    #: what its messages may have in the place of elements, by name
    compression: str = ""
    #: the algorithm that a graph of neighbours suggests, and why
    by_graph: tuple[str, str] | None = None

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.topology.nodes)


class Choice(NamedTuple):
    """The algorithm for a call."""

    name: str
    #: the pieces of its messages; None: whole messages
    segment_bytes: int | None
    reason: str
    #: whether its messages have codes in the place of elements
    compressed: bool = False

    def __str__(self) -> str:
        pieces = f" in pieces of {self.segment_bytes} bytes" if self.segment_bytes else ""
        codes = ", compressed" if self.compressed else ""
        return f"{self.name}{pieces}{codes} ({self.reason})"


Probe = Callable[[Query], Choice | None]


def choose(
    query: Query,
    explicit: str | None = None,
    segment_bytes: int | None = None,
    probe: Probe | None = None,
) -> Choice:
    """The `Choice` for a call.

    segment_bytes: what the call asks for (0: whole messages). probe: measures where no table
    applies; it may communicate. Raises ArgumentError where an explicit algorithm is unknown or
    cannot serve the call.
    """
    if segment_bytes is not None:
        segment_bytes = _checked(segment_bytes)
    if query.compression and explicit is None and (reason := _exact_is_faster(query)):
        choice = choose(query._replace(compression=""), None, segment_bytes, probe)
        return choice._replace(reason=f"{choice.reason}; not compressed: {reason}")
    if query.compression:
        query = query._replace(
            unfit=query.unfit or "MPI's messages are not compressed",
            nccl=query.nccl or "NCCL's messages are not compressed",
        )
    if explicit is not None:
        # MPI itself reports a count of the caller's type that is too large
        moved = explicit == NATIVE and query.collective not in NEIGHBORHOODS
        moved = moved and not algorithms.meaning_of(query.collective).reduces
        refusal = "" if moved else refuses(query, explicit)
        if refusal:
            what = f"algorithm={explicit!r} cannot serve this {query.collective}"
            raise ArgumentError(f"{what}: {refusal}")
        choice = Choice(explicit, default_segment(query, explicit), "asked for by the call")
    else:
        choice = _choose(query, probe)
    choice = choice._replace(compressed=bool(query.compression))
    if segment_bytes is None or choice.name in LIBRARIES:
        return choice
    return choice._replace(segment_bytes=segment_bytes or None)


def _exact_is_faster(query: Query) -> str:
    """Why codes in the place of elements would not save time; "" where they do."""
    if query.topology.node_count == 1:
        return "all ranks are on one node"
    low = _compressed_from(query)
    if (query.nbytes or 0) >= low:
        return ""
    sizes = "here" if low == inf else f"below {format_bytes(int(low))} bytes"
    return f"{sizes} that takes no less time"


def _compressed_from(query: Query) -> float:
    """Bytes from which codes in the place of elements save time."""
    for tuning in _tables():
        low = tuning.compressed_from(query.collective, query.topology, query.compression)
        if low is not None:
            return low
    return COMPRESSED_FROM


def _checked(segment_bytes: Any) -> int:
    if not hasattr(segment_bytes, "__index__") or segment_bytes < 0:
        expected = "a number of bytes, or 0 for whole messages"
        raise ArgumentError(f"segment_bytes={segment_bytes!r}: expected {expected}")
    return int(segment_bytes)


def _choose(query: Query, probe: Probe | None) -> Choice:
    notes: list[str] = []
    for choice in _by_rules(query):
        refusal = refuses(query, choice.name)
        if not refusal:
            return choice._replace(reason="; ".join([*notes, choice.reason]))
        notes.append(f"{choice.reason} cannot serve it ({refusal})")
    measured = probe(query) if probe and _measurable(query) else None
    if measured and not refuses(query, measured.name):
        choice = measured
    else:
        choice = _last_resort(query)
    if any(f"({choice.reason})" in note for note in notes):  # no repetition
        choice = choice._replace(reason="of those that can, the fastest by the cost model")
    return choice._replace(reason="; ".join([*notes, choice.reason]))


def _measurable(query: Query) -> bool:
    """Whether a probe may tell more: for a large call, on a transport that is in no table."""
    if query.unfit or query.obstacle or query.size == 1 or (query.nbytes or 0) < SMALL:
        return False
    if query.uneven:  # a rank may choose anew where others need not
        return False
    return not any(table.knows(query.topology) for table in _tables())


def _tables() -> list[table.TuningTable]:
    user_table, _ = table.user()
    return [user_table, table.shipped()] if user_table else [table.shipped()]


def reduces_on_device(dtype: str, nbytes: int, default: bool) -> bool:
    """Whether staged vectors of this type and size are reduced on the device.

    default: where the user's table has no entry for the type.
    """
    user_table, _ = table.user()
    low = user_table.reduce_on_device.get(dtype) if user_table else None
    return default if low is None else nbytes >= low


def _by_rules(query: Query) -> Iterator[Choice]:
    """The choices by rules of the environment and the tables, in order of precedence."""
    for setting in environment_rules():
        if setting.applies_to(query):
            segment = default_segment(query, setting.algorithm)
            yield Choice(setting.algorithm, segment, f"{settings.ALGORITHM}={setting.text}")
    if query.by_graph is not None:
        name, reason = query.by_graph
        yield Choice(name, None, reason)
    if query.obstacle or query.size == 1 or query.nbytes is None:
        return
    if query.once and query.nbytes < SMALL:
        return
    for tuning in _tables():
        for rule in tuning.rules(
            query.collective, query.topology, query.nbytes, query.engine, query.typed
        ):
            low = format_bytes(int(max(rule.low, rule.share * query.size)))
            yield Choice(rule.algorithm, rule.segment_bytes, f"{tuning.name}, from {low} bytes")


def default_segment(query: Query, algorithm: str) -> int | None:
    """The pieces of messages by default: as in the tables for this transport."""
    if algorithm in LIBRARIES or query.collective in NEIGHBORHOODS:
        return None
    in_tables = (table.segment(query.topology) for table in _tables())
    segment = next(filter(None, in_tables), None)
    pipelined = algorithms.find(query.collective, algorithm).blocks == "segments"
    return segment or (SEGMENT_BYTES if pipelined else None)


def refuses(query: Query, algorithm: str) -> str:
    """Why this algorithm cannot serve the call, or "". Raises ArgumentError for an unknown name."""
    if algorithm == NATIVE:
        return query.unfit
    if algorithm in algorithms.library_names(query.collective):
        return query.nccl
    entry = algorithms.find(query.collective, algorithm)
    if query.obstacle:
        return query.obstacle
    if query.uneven and entry.equal_blocks:
        return f"blocks may have any sizes, and {algorithm} moves blocks of one size"
    registered = algorithms.registered(query.collective)
    if query.compression and not entry.compressible:
        names = ", ".join(entry.name for entry in registered if entry.compressible)
        reason = "writes into memory of other ranks"
        if entry.cuttable:
            reason = "quantises a value more than twice"
        return f"compressed, {algorithm} {reason}; these can be compressed: {names}"
    if query.canonical and not entry.canonical:
        names = ", ".join(entry.name for entry in registered if entry.canonical)
        reason = f"{algorithm} adds in an order of its own; in the canonical one: {names}"
        return f"the communicator is deterministic, and {reason}"
    if not query.commutative and not entry.ordered:
        names = ", ".join(entry.name for entry in registered if entry.ordered)
        reason = f"{algorithm} does not keep rank order; these do: {names}"
        return f"the op is not commutative, and {reason}"
    return ""


def _last_resort(query: Query) -> Choice:
    if not query.unfit:
        will_probe = _measurable(query) and settings.probe()
        until = " until the first such call has probed" if will_probe else ""
        return Choice(NATIVE, None, query.obstacle or f"the default here{until}")
    able = [
        entry
        for entry in algorithms.proposed(query.collective)
        if not refuses(query, entry.name)
    ]
    if able:
        best = min(able, key=partial(_predicted, query)).name
        shares_nodes = query.topology.node_count < query.size
        if query.compression and shares_nodes and "hierarchical" in [each.name for each in able]:
            best = "hierarchical"  # quantised once a node
        return Choice(best, default_segment(query, best), query.unfit)
    reasons = f"{query.obstacle}; {query.unfit}"
    raise ArgumentError(f"no algorithm can serve this {query.collective}: {reasons}")


def _predicted(query: Query, entry: algorithms.Algorithm) -> tuple[float, bool]:
    """A sort key: seconds by the cost model, or infinity; then whether it suits the transport."""
    within = query.topology.node_count == 1
    # direct sends the messages of pairwise, in one round
    name = "pairwise" if entry.name == "direct" and within else entry.name
    link = table.link(query.topology) or (WITHIN_NODE if within else BETWEEN_NODES)
    nbytes = query.nbytes or 0
    segment = default_segment(query, entry.name)
    segments = segment_count(nbytes, segment)
    seconds = link.seconds(query.collective, name, query.size, nbytes, segments)
    return inf if seconds is None else seconds, entry.cuttable == within


def native_below(collective: str, topology: Topology) -> float:
    """Bytes below which MPI's own call serves every call, without a choice; 0: never."""
    if environment_rules() or settings.verbose():
        return 0
    tables = [table for table in _tables() if table.knows(topology)]
    return min((table.native_below(collective, topology) for table in tables), default=SMALL)


def is_named(collective: str, algorithm: str) -> bool:
    """Whether a rule of the environment or of the user's table names this algorithm."""
    names = [(rule.collective, rule.algorithm) for rule in environment_rules()]
    user_table, _ = table.user()
    for entry in user_table.entries if user_table else ():
        names += [(entry.collective, rule.algorithm) for rule in entry.rules]
    return (collective, algorithm) in names


class EnvironmentRule(NamedTuple):
    """An entry of MPICOLL_ALGORITHM: the algorithm for `low` to below `high` bytes."""

    collective: AnyCollective
    low: float
    high: float
    algorithm: str
    text: str

    def applies_to(self, query: Query) -> bool:
        """Whether it applies to a call; a rule for all sizes applies to unknown sizes, too."""
        if self.collective != query.collective:
            return False
        if (self.low, self.high) == (0, inf):
            return True
        return query.nbytes is not None and self.low <= query.nbytes < self.high


@lru_cache(maxsize=1)
def environment_rules() -> list[EnvironmentRule]:
    """The rules of MPICOLL_ALGORITHM, read once per process. Raises ArgumentError if invalid."""
    return parse_rules(settings.algorithm())


def parse_rules(text: str) -> list[EnvironmentRule]:
    """The entries of MPICOLL_ALGORITHM.

    >>> parse_rules("allreduce:0-8k:native")[0].high
    8192
    """
    return [_parse_rule(entry) for entry in filter(None, map(str.strip, text.split(",")))]


def _parse_rule(text: str) -> EnvironmentRule:
    fields = text.split(":")
    low, high = 0.0, inf
    try:
        if len(fields) not in (2, 3):
            raise ArgumentError("expected collective:algorithm or collective:from-below:algorithm")
        collective = algorithms.meaning_of(fields[0]).name
        algorithm = fields[-1]
        if len(fields) == 3:
            low, high = map(parse_bytes, fields[1].split("-", 1))
            if low >= high:
                raise ArgumentError(f"no size is from {low} to below {high} bytes")
        algorithms.require(collective, algorithm)
    except (ArgumentError, ValueError) as error:
        problem = f"{settings.ALGORITHM}: cannot use {text!r}: {error}"
        example = "allreduce:0-8k:native,allreduce:8k-inf:ring"
        raise ArgumentError(f"{problem}; an example: {example}") from None
    return EnvironmentRule(collective, low, high, algorithm, text)
