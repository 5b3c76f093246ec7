"""Tuning tables: the algorithms by bytes, for an MPI library, a transport, and ranks on nodes.

A table is a JSON file, which a person can read and edit:

    {"schema": 1, "environment": {…}, "entries": [
      {"mpi": "Open MPI v5.0.11", "transport": "tcp", "ranks": 7, "nodes": 7,
       "collective": "allreduce", "rules": [
        {"from": "0", "algorithm": "native"},
        {"from": "4K", "algorithm": "circulant"},
        {"from": "256K", "algorithm": "ring", "segment_bytes": 60000}]}]}

The last rule holds whose `from` (bytes of the vector) and `from_per_rank` (bytes of a rank's share)
are reached. `mpi` is the library's name, with or without its version. `ranks` is a number, "any",
"power_of_two" or "no_power_of_two"; `nodes` is a number, "any", "one", "one_rank_each" or
"several_ranks_each". The first entry that fits and can serve the call is taken. An entry with
`"engine": "c"` holds for calls whose schedules the extension executes on all ranks: repeated
blocking calls of plain arrays, inside a node through shared memory or between nodes. An entry with
`"typed": true` holds for Alltoallw, whose blocks have datatypes of their own, and no other does;
`from` is then what a rank sends.

An entry may have `"compressed_from": {"int8": "256K"}`: the bytes from which a call that allows
these codes is compressed between nodes; "inf": never.

Beside `entries` there may be `"reduce_on_device": {"float32": "1M"}`: the bytes of a vector from
which a type is reduced on the device although its messages pass through the host. Without it,
16-bit types always are, others never.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from .. import algorithms, collectives
from ..codes import codes_of
from ..errors import ArgumentError, did_you_mean
from ..schedule import power_of_two
from ..simulate import closed_form
from ..support import settings
from ..support.arrays import element_type
from ..support.files import parse_json, write_whole
from ..support.units import format_bytes, parse_bytes
from ..transport import Topology

SCHEMA = 1
_ENGINES = (settings.C, settings.PYTHON)
_RANKS: dict[object, Callable[[int], bool]] = {
    "any": lambda size: True,
    "power_of_two": lambda size: size == power_of_two(size),
    "no_power_of_two": lambda size: size != power_of_two(size),
}
_NODES: dict[object, Callable[[Topology], bool]] = {
    "any": lambda topology: True,
    "one": lambda topology: topology.node_count == 1,
    "one_rank_each": lambda topology: topology.node_count == len(topology.nodes) > 1,
    "several_ranks_each": lambda topology: 1 < topology.node_count < len(topology.nodes),
}


class Rule(NamedTuple):
    """The algorithm from a number of bytes on."""

    #: bytes of the vector
    low: float
    #: bytes of a rank's share
    share: float
    algorithm: str
    #: the pieces of messages; None: whole messages
    segment_bytes: int | None


class TableEntry(NamedTuple):
    """The rules for one collective on one kind of place."""

    mpi: str
    transport: str
    #: a number, or a word as in the file
    ranks: int | str
    nodes: int | str
    collective: collectives.CollectiveName
    rules: tuple[Rule, ...]
    #: what executes schedules: "c", "python", or "any"
    engine: str = "any"
    #: by the name of a compression, bytes from which it saves time
    compressed_from: tuple[tuple[str, float], ...] = ()
    #: whether it is for calls of which each block has its own datatype
    typed: bool = False

    def is_about(self, topology: Topology) -> bool:
        """Whether this entry is for that MPI library and transport."""
        return self.transport in (topology.transport, "any") and _is(topology.library, self.mpi)

    def fits(
        self, collective: str, topology: Topology, engine: str = settings.PYTHON,
        typed: bool = False,
    ) -> bool:  # fmt: skip
        """Whether this entry is for that collective there.

        engine: what executes schedules. typed: blocks have datatypes of their own.
        """
        return (
            collective == self.collective
            and typed == self.typed
            and self.engine in (engine, "any")
            and self.is_about(topology)
            and self._fits_ranks(len(topology.nodes))
            and self._fits_nodes(topology)
        )

    def _fits_ranks(self, size: int) -> bool:
        return _RANKS[self.ranks](size) if self.ranks in _RANKS else self.ranks == size

    def _fits_nodes(self, topology: Topology) -> bool:
        if self.nodes in _NODES:
            return _NODES[self.nodes](topology)
        return self.nodes == topology.node_count

    def rule(self, nbytes: int, size: int) -> Rule | None:
        """The `Rule` for a vector of this size, or None."""
        for rule in reversed(self.rules):
            if rule.low <= nbytes and rule.share * size <= nbytes:
                return rule
        return None


def _is(library: str, name: str) -> bool:
    """Whether a name, with or without version, means a library (its name and version)."""
    return library == name or library.startswith(name + " ")


class Link(NamedTuple):
    """Parameters of the cost model."""

    #: seconds per message
    alpha: float
    #: bytes per second
    bandwidth: float
    #: seconds per byte that is reduced
    gamma: float

    def seconds(
        self, collective: str, algorithm: str, size: int, nbytes: int, segments: int = 1
    ) -> float | None:
        """The predicted time of a schedule, or None without a formula.

        segments: of pipelined algorithms.
        """
        cost = closed_form(collective, algorithm, size, segments)
        return cost and cost.seconds(nbytes, *self)


class TuningTable(NamedTuple):
    """The contents of a file."""

    #: in messages
    name: str
    #: in order of precedence
    entries: tuple[TableEntry, ...]
    #: by library and transport
    links: dict[tuple[str, str], Link]
    #: by the name of a type, bytes from which a staged vector is reduced on the device
    reduce_on_device: dict[str, float]

    def rules(
        self, collective: str, topology: Topology, nbytes: int, engine: str = settings.PYTHON,
        typed: bool = False,
    ) -> list[Rule]:  # fmt: skip
        """The `Rule`s for a call, of each entry that fits; engine, typed: see `fits`."""
        size = len(topology.nodes)
        fitting = [
            entry for entry in self.entries if entry.fits(collective, topology, engine, typed)
        ]
        rules = [entry.rule(nbytes, size) for entry in fitting]
        return [rule for rule in rules if rule]

    def compressed_from(
        self, collective: str, topology: Topology, compression: str
    ) -> float | None:
        """Bytes from which compression saves time there; None where no entry says so."""
        for entry in self.entries:
            lows = dict(entry.compressed_from)
            is_there = any(entry.fits(collective, topology, each) for each in _ENGINES)
            if compression in lows and is_there:
                return lows[compression]
        return None

    def knows(self, topology: Topology) -> bool:
        """Whether it has entries for this library and transport."""
        return any(entry.is_about(topology) for entry in self.entries)

    def native_below(self, collective: str, topology: Topology) -> float:
        """Bytes below which every entry that fits names MPI's own call."""
        fitting = [entry for entry in self.entries if entry.fits(collective, topology)]
        rules = [rule for entry in fitting for rule in entry.rules]
        return min((rule.low for rule in rules if rule.algorithm != algorithms.NATIVE), default=inf)

    def segment(self, topology: Topology) -> int | None:
        """The most frequent pieces of messages on this transport, or None."""
        fitting = [entry for entry in self.entries if entry.fits(entry.collective, topology)]
        rules = [rule for entry in fitting for rule in entry.rules]
        segments = [rule.segment_bytes for rule in rules if rule.segment_bytes]
        return max(set(segments), key=segments.count, default=None)


# Reading.

#: the fields of each part of a file; `environment` and `source` tell a person where it comes from
_FIELDS = {
    "the table": ("schema", "environment", "source", "links", "entries", "reduce_on_device"),
    "a link": ("mpi", "transport", "alpha", "bandwidth", "gamma"),
    "an entry": ("mpi", "transport", "ranks", "nodes", "collective", "rules", "engine",
                 "compressed_from", "typed"),
    "a rule": ("from", "from_per_rank", "algorithm", "segment_bytes"),
}  # fmt: skip


def _must_know(part: str, document: dict[str, Any]) -> None:
    """Raise ArgumentError for a field that means nothing there, as a slip of the pen."""
    for field in document:
        if field not in _FIELDS[part]:
            there = ", ".join(_FIELDS[part])
            hint = did_you_mean(field, _FIELDS[part])
            raise ArgumentError(f"{part} has no field {field!r}; there are: {there}{hint}")


def parse(text: str, name: str) -> TuningTable:
    """The table that a JSON text describes. Raises ArgumentError with the mistake."""
    document = parse_json(text)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        schema = document.get("schema") if isinstance(document, dict) else None
        raise ArgumentError(
            f"its schema is {schema!r}, this version of mpicoll reads {SCHEMA}: "
            "make it anew with mpicoll tune"
        )
    try:
        _must_know("the table", document)
        links = {(fit["mpi"], fit["transport"]): _link(fit) for fit in document.get("links", ())}
        lows = document.get("reduce_on_device", {})
        on_device = {element_type(dtype).name: _bytes(low) for dtype, low in lows.items()}
        entries = tuple([_entry(entry) for entry in document["entries"]])
        return TuningTable(name, entries, links, on_device)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ArgumentError(f"an entry lacks or misuses a field: {error}") from None


def _link(fit: dict[str, Any]) -> Link:
    _must_know("a link", fit)
    result = Link(fit["alpha"], fit["bandwidth"], fit["gamma"])
    if not all(isinstance(figure, (int, float)) and isfinite(figure) for figure in result):
        raise TypeError(f"expected numbers for alpha, bandwidth and gamma, got {tuple(result)}")
    if not result.bandwidth:
        raise ArgumentError("an entry lacks or misuses a field: bandwidth is 0")
    if min(result) < 0:
        got = f"got {tuple(result)}"
        raise ArgumentError(f"expected no alpha, bandwidth and gamma below 0, {got}")
    return result


def _entry(entry: dict[str, Any]) -> TableEntry:
    _must_know("an entry", entry)
    ranks, nodes = entry["ranks"], entry["nodes"]
    mpi, transport = entry["mpi"], entry["transport"]
    if not isinstance(mpi, str) or not isinstance(transport, str):
        got = f"{mpi!r} and {transport!r}"
        raise ArgumentError(f"expected texts for mpi and transport, got {got}")
    if not (ranks in _RANKS or type(ranks) is int) or not (nodes in _NODES or type(nodes) is int):
        got = f"{ranks!r} and {nodes!r}"
        raise ArgumentError(f"expected numbers or known words for ranks and nodes, got {got}")
    if any(isinstance(number, int) and number < 1 for number in (ranks, nodes)):
        raise ArgumentError(f"expected 1 or more ranks and nodes, got {ranks} and {nodes}")
    collective = collectives.find(entry["collective"]).name
    rules = tuple([_rule(collective, rule) for rule in entry["rules"]])
    engine = entry.get("engine", "any")
    if engine not in (*_ENGINES, "any"):
        raise ArgumentError(f"expected c, python or any for engine, got {engine!r}")
    lows = entry.get("compressed_from", {}).items()
    compressed_from = tuple((codes_of(name).name, _bytes(low)) for name, low in lows)
    typed = entry.get("typed", False)
    if not isinstance(typed, bool):
        raise ArgumentError(f"expected true or false for typed, got {typed!r}")
    return TableEntry(
        mpi, transport, ranks, nodes, collective, rules, engine, compressed_from, typed
    )


def _rule(collective: collectives.CollectiveName, rule: dict[str, Any]) -> Rule:
    _must_know("a rule", rule)
    algorithms.require(collective, rule["algorithm"])
    low = _bytes(rule.get("from", 0))
    share = _bytes(rule.get("from_per_rank", 0))
    segment = rule.get("segment_bytes")
    length = None if segment is None else _bytes(segment)
    if length is not None and not 1 <= length < inf:
        expected = f"a size above 0 for segment_bytes, got {segment!r}"
        raise ArgumentError(f"expected {expected}; leave it out where messages are not cut")
    return Rule(low, share, rule["algorithm"], None if length is None else int(length))


def _bytes(size: object) -> float:
    """A number of bytes, or a text such as 64K."""
    if isinstance(size, float):
        raise ArgumentError(f"expected a whole number of bytes, or a text such as 64K, got {size}")
    return parse_bytes(size)


# The user's table and mpicoll's.


@lru_cache(maxsize=1)
def user() -> tuple[TuningTable | None, str]:
    """(the table of MPICOLL_TUNING_FILE or None, why it cannot be used or ""); read once."""
    path = settings.tuning_file()
    if path is None:
        return None, ""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path)), ""
    except (OSError, UnicodeDecodeError, ArgumentError) as error:
        reason = getattr(error, "strerror", None) or error
        return None, f"{settings.TUNING_FILE}={path} is not used: {reason}"


def link(topology: Topology) -> Link | None:
    """The `Link` that `mpicoll tune` fitted for this library and transport, or None."""
    table, _ = user()
    return table.links.get((topology.library, topology.transport)) if table else None


@lru_cache(maxsize=1)
def shipped() -> TuningTable:
    """The table that comes with mpicoll: from measured runs, see its `source`."""
    path = Path(__file__).with_name("default_table.json")
    return parse(path.read_text(encoding="utf-8"), "mpicoll's default table")


def read_tables() -> None:
    """Read both tables, once; raises OSError where mpicoll's own cannot be read."""
    shipped()
    user()


@lru_cache(maxsize=None)
def problem(library: str) -> str:
    """Why the user's table does not apply to this MPI library; "" if it does, or without one."""
    table, reason = user()
    if table is None:
        return reason
    libraries = {entry.mpi for entry in table.entries}
    if any(_is(library, mpi) for mpi in libraries):
        return ""
    names = ", ".join(sorted(libraries)) or "nothing"
    return f"{settings.TUNING_FILE}={table.name} is not used: it is for {names}, not {library}"


# Writing.

Document = dict[str, Any]


def write(
    path: Path, environment: Document, entries: Sequence[Document], link: Document | None
) -> None:
    """Put entries and a link (dicts as in the file, or None) in front of the table at `path`.

    Old entries and links of the same place are replaced.
    """
    document: Document = {"entries": [], "links": []}
    if path.exists() and path.stat().st_size:
        text = path.read_text(encoding="utf-8")
        parse(text, str(path))
        document |= json.loads(text)
    place = ("mpi", "transport")
    merged = {
        "schema": SCHEMA,
        "environment": environment,
        "links": _merged(document["links"], [link] if link else [], place),
        "entries": _merged(
            document["entries"],
            entries,
            (*place, "ranks", "nodes", "engine", "collective", "typed"),
        ),
        **{key: document[key] for key in ("reduce_on_device",) if key in document},
    }
    write_whole(path, json.dumps(merged, indent=1) + "\n")


def _merged(
    old: Sequence[Document], new: Sequence[Document], place: Sequence[str]
) -> list[Document]:
    """The new documents, then the old documents of other places. place: the fields that tell."""
    new_places = [[document.get(field) for field in place] for document in new]
    kept = [
        document for document in old if [document.get(field) for field in place] not in new_places
    ]
    return [*new, *kept]


def rules_of(winners: Iterable[tuple[int, str, int | None]]) -> list[Document]:
    """Rules from [(bytes, algorithm, segment_bytes)] in ascending order, without repetitions.

    Below the first size, which was not measured, MPI's own call is taken.
    """
    rules: list[Document] = [{"from": "0", "algorithm": algorithms.NATIVE}]
    for nbytes, algorithm, segment in winners:
        if not nbytes:  # of a barrier, which has no other size
            rules.clear()
        before = (rules[-1]["algorithm"], rules[-1].get("segment_bytes")) if rules else None
        if before != (algorithm, segment):
            rule = {"from": format_bytes(nbytes), "algorithm": algorithm}
            rules.append(rule if segment is None else {**rule, "segment_bytes": segment})
    return rules
