"""What the doctor measures: records of ranks, cores, pairs of nodes and collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class RankFacts:
    """Where a rank is, and how it was set up."""

    rank: int
    #: the number of its node, in the order of the nodes' lowest ranks
    node: int
    host: str
    #: the same text on nodes that one kernel serves, as containers of one machine are
    kernel: str
    #: the processors that it may use
    processors: tuple[int, ...]
    #: of these, the cores, each as its lowest processor
    cores: tuple[int, ...]
    #: threads of BLAS, and the variable that says so; "" where none does
    threads: int
    threads_by: str
    #: settings of the MPI library and of BLAS, from the environment
    settings: Mapping[str, str]
    #: whether the kernel lets a TCP connection that was idle begin slowly again
    slow_restarts: bool = False


def processors_of(ranks: Iterable[RankFacts]) -> set[int]:
    """The processors that one of these ranks may use."""
    return {number for facts in ranks for number in facts.processors}


@dataclass(frozen=True)
class CoreResult:
    """What a rank's cores do."""

    rank: int
    #: processor seconds of the fixed computation, the least of some
    seconds: float
    #: the largest part of the elapsed time that the rank had a core while it computed
    share: float
    #: of the computation's result; several where repetitions differed
    digests: tuple[int, ...]
    #: bytes per processor second that are read and written by a copy
    memory: float
    #: the part of the time that the rank's processors were busy while all ranks slept
    busy: float
    #: the busiest other process there: "name (pid 123)"; "" where none is seen
    other: str = ""

    def best_with(self, later: CoreResult) -> CoreResult:
        """Both measurements as one: what disturbs makes figures worse, never better."""
        calmer = min(self, later, key=lambda result: result.busy)
        return CoreResult(
            self.rank,
            min(self.seconds, later.seconds),
            max(self.share, later.share),
            tuple(sorted({*self.digests, *later.digests})),
            max(self.memory, later.memory),
            calmer.busy,
            calmer.other,
        )


@dataclass(frozen=True)
class PairResult:
    """What one node sends to another."""

    source: int
    target: int
    #: seconds of a message of 8 bytes, one way, the least of some
    latency: float
    #: bytes per second, the most of some messages
    bandwidth: float
    #: bytes of the messages
    nbytes: int
    #: messages whose checksum differed
    wrong: int = 0
    #: how often the pair was measured, at different times
    sessions: int = 1
    #: seconds that the target's clock is ahead of the source's
    clock: float = 0.0

    def best_with(self, later: PairResult) -> PairResult:
        """Both measurements as one: what disturbs makes figures worse, never better."""
        return PairResult(
            self.source,
            self.target,
            min(self.latency, later.latency),
            max(self.bandwidth, later.bandwidth),
            max(self.nbytes, later.nbytes),
            self.wrong + later.wrong,
            self.sessions + later.sessions,
            later.clock,
        )


def by_pair(results: Iterable[PairResult]) -> dict[tuple[int, int], PairResult]:
    """The measurements of each pair as one, by source and target."""
    merged: dict[tuple[int, int], PairResult] = {}
    for result in results:
        pair = result.source, result.target
        merged[pair] = merged[pair].best_with(result) if pair in merged else result
    return merged


@dataclass(frozen=True)
class NodeTraffic:
    """What the network interfaces of a node carried while pairs were measured."""

    node: int
    #: bytes that the doctor's messages had
    expected: int
    #: {interface: bytes}
    carried: Mapping[str, int]
    #: {interface that is up: bits per second; 0 where unknown}
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def used(self) -> str:
        """The interface that carried the messages; "" where none did, as with direct access."""
        outside = {name: count for name, count in self.carried.items() if name != "lo"}
        name = max(outside, key=lambda name: outside[name], default="")
        return name if name and outside[name] > self.expected / 2 > 0 else ""


@dataclass(frozen=True)
class CollectiveResult:
    """A collective by MPI's own call, and as mpicoll's `auto` chooses."""

    collective: str
    nbytes: int
    #: seconds, the least of some
    native: float
    auto: float
    #: what auto chose
    algorithm: str
    #: seconds that the measured links need; 0 where no link takes part
    bound: float


@dataclass(frozen=True)
class Measured:
    """All that was measured, the same on all ranks."""

    library: str
    transport: str
    ranks: Sequence[RankFacts]
    cores: Sequence[CoreResult] = ()
    #: pairs measured together with others
    pairs: Sequence[PairResult] = ()
    #: pairs measured alone
    alone: Sequence[PairResult] = ()
    #: within a node, by rank in the place of node
    inside: Sequence[PairResult] = ()
    traffic: Sequence[NodeTraffic] = ()
    #: bytes of the longest message that the first pair sends before its receiver is there
    eager: int = 0
    collectives: Sequence[CollectiveResult] = ()
    seconds: float = 0.0

    @property
    def hosts(self) -> list[str]:
        """The name of each node."""
        return [names[0].host for names in self.nodes]

    @property
    def nodes(self) -> list[list[RankFacts]]:
        """The ranks of each node."""
        count = 1 + max(facts.node for facts in self.ranks)
        nodes: list[list[RankFacts]] = [[] for _ in range(count)]
        for facts in self.ranks:
            nodes[facts.node].append(facts)
        return nodes

    @property
    def one_kernel(self) -> bool:
        """Whether some nodes are containers or namespaces of one machine, and share its cores."""
        kernels = [ranks[0].kernel for ranks in self.nodes if ranks[0].kernel]
        return len(set(kernels)) < len(kernels)

    @property
    def crowded(self) -> bool:
        """Whether nodes share cores, or one has more ranks than processors for them."""
        return self.one_kernel or any(
            len(ranks) > len(processors_of(ranks)) for ranks in self.nodes
        )

    def best_pairs(self) -> dict[tuple[int, int], PairResult]:
        """The best measurement of each pair, by source and target."""
        return by_pair((*self.pairs, *self.alone))

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)
