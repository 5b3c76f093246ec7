"""Tuning tables: which algorithm serves which bytes, for an MPI library, a transport, and ranks on nodes. Read and write.

A table is a JSON file a person can read and edit:

    {"schema": 1, "environment": {…}, "entries": [
      {"mpi": "Open MPI v5.0.11", "transport": "tcp", "ranks": 7, "nodes": 7, "collective": "allreduce", "rules": [
        {"from": "0", "algorithm": "native"},
        {"from": "4K", "algorithm": "circulant"},
        {"from": "256K", "algorithm": "ring", "segment_bytes": 60000}]}]}

The last rule whose `from` (bytes of the vector) and `from_per_rank` (bytes of a rank's share) are reached holds. `mpi` is the
library's name, with or without its version. `ranks` is a number, "any", "power_of_two" or "no_power_of_two"; `nodes` is a
number, "any", "one", "one_rank_each" or "several_ranks_each". The first entry that fits and can serve is taken.

Beside `entries` there may be `"reduce_on_device": {"float32": "1M"}`: from how many bytes of a vector a type is reduced on
the device although its messages pass through the host. Without it, 16-bit types always are, others never.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from .. import algorithms, collectives
from ..errors import ArgumentError
from ..execute import Topology
from ..schedule import power_of_two
from ..simulate import closed_form
from ..support import settings
from ..support.arrays import element_type
from ..support.files import parse_json, write_whole
from ..support.units import format_bytes, parse_bytes

SCHEMA = 1
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
    """From how many bytes (of the vector, and of a rank's share) on which algorithm is taken, cut into which pieces."""

    low: float
    share: float
    algorithm: str
    segment_bytes: int | None


class Entry(NamedTuple):
    """The rules for one collective on one kind of place. ranks, nodes: a number, or a word as in the file."""

    mpi: str
    transport: str
    ranks: int | str
    nodes: int | str
    collective: collectives.CollectiveName
    rules: tuple[Rule, ...]

    def is_about(self, topology: Topology) -> bool:
        """Whether this entry is for that MPI library and transport."""
        return self.transport in (topology.transport, "any") and _is(topology.library, self.mpi)

    def fits(self, collective: str, topology: Topology) -> bool:
        """Whether this entry speaks of that collective there."""
        size = len(topology.nodes)
        return (
            collective == self.collective
            and self.is_about(topology)
            and (_RANKS[self.ranks](size) if self.ranks in _RANKS else self.ranks == size)
            and (_NODES[self.nodes](topology) if self.nodes in _NODES else self.nodes == topology.node_count)
        )

    def rule(self, nbytes: int, size: int) -> Rule | None:
        """The `Rule` for a vector of so many bytes, or None."""
        reached = [rule for rule in self.rules if rule.low <= nbytes and rule.share * size <= nbytes]
        return reached[-1] if reached else None


def _is(library: str, name: str) -> bool:
    """Whether a library's name and version are meant by a name with or without version."""
    return library == name or library.startswith(name + " ")


class Link(NamedTuple):
    """Figures of the cost model: seconds per message, bytes per second, seconds per byte reduced."""

    alpha: float
    bandwidth: float
    gamma: float

    def seconds(self, collective: str, algorithm: str, size: int, nbytes: int, segments: int = 1) -> float | None:
        """The predicted time of a schedule, or None where there is no formula. segments: of pipelined algorithms."""
        cost = closed_form(collective, algorithm, size, segments)
        return cost and cost.seconds(nbytes, *self)


class Table(NamedTuple):
    """Entries in the order in which they are asked, and where they came from. links: by (library, transport).

    reduce_on_device: bytes from which a type, by its name, is reduced on the device where messages pass through the host.
    """

    name: str
    entries: tuple[Entry, ...]
    links: dict[tuple[str, str], Link]
    reduce_on_device: dict[str, float]

    def rules(self, collective: str, topology: Topology, nbytes: int) -> list[Rule]:
        """The `Rule`s for a call, of each entry that fits."""
        found = [entry.rule(nbytes, len(topology.nodes)) for entry in self.entries if entry.fits(collective, topology)]
        return [rule for rule in found if rule]

    def knows(self, topology: Topology) -> bool:
        """Whether it speaks of this library and transport at all."""
        return any(entry.is_about(topology) for entry in self.entries)

    def native_below(self, collective: str, topology: Topology) -> float:
        """Bytes below which no entry that fits names anything but MPI's own call."""
        rules = [rule for entry in self.entries if entry.fits(collective, topology) for rule in entry.rules]
        return min((rule.low for rule in rules if rule.algorithm != algorithms.NATIVE), default=float("inf"))

    def segment(self, topology: Topology) -> int | None:
        """The pieces that messages are cut into on this transport, or None."""
        fitting = [entry for entry in self.entries if entry.fits(entry.collective, topology)]
        segments = [rule.segment_bytes for entry in fitting for rule in entry.rules if rule.segment_bytes]
        return max(set(segments), key=segments.count, default=None)


# Reading.


def parse(text: str, name: str) -> Table:
    """The `Table` that a JSON text describes. Raises ArgumentError that says what is wrong with it."""
    document = parse_json(text)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise ArgumentError(f"its schema is {found!r}, this version of mpicoll reads {SCHEMA}: make it anew with mpicoll tune")
    try:
        links = {(fit["mpi"], fit["transport"]): _link(fit) for fit in document.get("links", ())}
        on_device = {element_type(one).name: parse_bytes(low) for one, low in document.get("reduce_on_device", {}).items()}
        return Table(name, tuple([_entry(entry) for entry in document["entries"]]), links, on_device)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ArgumentError(f"an entry lacks or misuses a field: {error}") from None


def _link(fit: dict[str, Any]) -> Link:
    found = Link(fit["alpha"], fit["bandwidth"], fit["gamma"])
    if not all(isinstance(figure, (int, float)) and isfinite(figure) for figure in found):
        raise TypeError(f"expected numbers for alpha, bandwidth and gamma, got {tuple(found)}")
    if not found.bandwidth:
        raise ArgumentError("an entry lacks or misuses a field: bandwidth is 0")
    return found


def _entry(entry: dict[str, Any]) -> Entry:
    ranks, nodes = entry["ranks"], entry["nodes"]
    if not isinstance(entry["mpi"], str) or not isinstance(entry["transport"], str):
        raise ArgumentError(f"expected texts for mpi and transport, got {entry['mpi']!r} and {entry['transport']!r}")
    if not (ranks in _RANKS or type(ranks) is int) or not (nodes in _NODES or type(nodes) is int):
        raise ArgumentError(f"expected numbers or known words for ranks and nodes, got {ranks!r} and {nodes!r}")
    collective = collectives.find(entry["collective"]).name
    rules = tuple([_rule(collective, rule) for rule in entry["rules"]])
    return Entry(entry["mpi"], entry["transport"], ranks, nodes, collective, rules)


def _rule(collective: collectives.CollectiveName, rule: dict[str, Any]) -> Rule:
    algorithms.require(collective, rule["algorithm"])
    segment = rule.get("segment_bytes")
    low, share = (parse_bytes(rule.get(name, 0)) for name in ("from", "from_per_rank"))
    length = None if segment is None else parse_bytes(segment)
    if length == inf:
        raise ArgumentError("expected a size for segment_bytes, got 'inf'; leave it out where messages are not cut")
    return Rule(low, share, rule["algorithm"], None if length is None else int(length))


# The two tables there are.


@lru_cache(maxsize=1)
def user() -> tuple[Table | None, str]:
    """(the `Table` that MPICOLL_TUNING_FILE names or None, why it cannot be used or ""); read once per process."""
    path = settings.tuning_file()
    if path is None:
        return None, ""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path)), ""
    except (OSError, UnicodeDecodeError, ArgumentError) as error:
        return None, f"{settings.TUNING_FILE}={path} is not used: {getattr(error, 'strerror', None) or error}"


def link(topology: Topology) -> Link | None:
    """What `mpicoll tune` fitted for this library and transport, or None."""
    table, _ = user()
    return table.links.get((topology.library, topology.transport)) if table else None


@lru_cache(maxsize=1)
def shipped() -> Table:
    """The table that comes with mpicoll: made from measured runs, see its `source`."""
    return parse(Path(__file__).with_name("default_table.json").read_text(encoding="utf-8"), "mpicoll's default table")


def read_tables() -> None:
    """Read both tables, once; raises OSError where mpicoll's own cannot be read."""
    shipped()
    user()


@lru_cache(maxsize=None)
def problem(library: str) -> str:
    """Why the user's table says nothing about this MPI library; empty where it does, or where there is no table."""
    table, reason = user()
    if table is None:
        return reason
    known = {entry.mpi for entry in table.entries}
    if any(_is(library, mpi) for mpi in known):
        return ""
    return f"{settings.TUNING_FILE}={table.name} is not used: it is for {', '.join(sorted(known)) or 'nothing'}, not {library}"


# Writing.

Document = dict[str, Any]


def write(path: Path, environment: Document, entries: Sequence[Document], link: Document | None) -> None:
    """Put entries and a link (dicts as in the file, or None) into the table at `path`, before what is there.

    Those of the same place are replaced.
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
        "entries": _merged(document["entries"], entries, (*place, "ranks", "nodes", "collective")),
        **{key: document[key] for key in ("reduce_on_device",) if key in document},
    }
    write_whole(path, json.dumps(merged, indent=1) + "\n")


def _merged(old: Sequence[Document], new: Sequence[Document], place: Sequence[str]) -> list[Document]:
    """Both, the new ones first, and alone where both have one for the same place."""
    places = [[one[name] for name in place] for one in new]
    return [*new, *(one for one in old if [one[name] for name in place] not in places)]


def rules_of(winners: Iterable[tuple[int, str, int | None]]) -> list[Document]:
    """Rules from [(bytes, algorithm, segment_bytes)] in ascending order: neighbours that agree are one rule.

    Below the first MPI's own call is taken: nothing is known there.
    """
    rules: list[Document] = [{"from": "0", "algorithm": algorithms.NATIVE}]
    for nbytes, algorithm, segment in winners:
        if (rules[-1]["algorithm"], rules[-1].get("segment_bytes")) != (algorithm, segment):
            rule = {"from": format_bytes(nbytes), "algorithm": algorithm}
            rules.append(rule if segment is None else {**rule, "segment_bytes": segment})
    return rules
