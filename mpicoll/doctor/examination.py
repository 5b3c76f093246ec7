"""The examination: all measurements, in order, on all ranks."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from mpi4py import MPI

from ..communicator import Communicator
from ..execute import Context
from ..support.node import processors, ranks_of_node
from ..support.quirks import library
from . import cores, transports
from .collectives import measure_allreduce
from .core_findings import busy_ranks
from .link_findings import capabilities, slow_pairs
from .pairs import Prober, tournament
from .records import CoreResult, Measured, NodeTraffic, PairResult, RankFacts, by_pair
from .waiting import Patience

#: how often a suspicion is measured again
CONFIRMATIONS = 3
#: seconds for all measurements of suspicious pairs
_CONFIRMING = 25.0
#: ranks of one machine that compute one after the other; others at the same time
_TURNS = 16
#: pairs measured alone, to see what all at once costs
_ALONE = 8


def examine(comm: MPI.Intracomm) -> Measured:
    """Measure everything; the same on all ranks. Collective over a plain communicator.

    Raises CollectiveTimeout where a rank or a link hangs.
    """
    began = time.perf_counter()
    private = comm.Dup()
    try:
        measured = _examine(private)
    finally:
        private.Free()
    seconds = comm.bcast(time.perf_counter() - began)
    return replace(measured, seconds=seconds)


def _examine(comm: MPI.Intracomm) -> Measured:
    patience = Patience(comm)
    communicator = Communicator(comm)
    ranks = _facts(comm, patience)
    transport = Context.of(communicator).topology.transport
    measured = Measured(library(), transport, ranks)
    patience.crowded = measured.crowded
    measured = _with_cores(measured, comm, patience)
    measured = _with_pairs(measured, comm, patience)
    patience.meet("the messages")
    out, into = capabilities(measured.best_pairs().values())
    slowest = min([*out.values(), *into.values()], default=0.0)
    if comm.Get_size() > 1:
        result = comm.bcast(measure_allreduce(communicator, len(measured.hosts), slowest))
        measured = replace(measured, collectives=(result,))
    return measured


def _facts(comm: MPI.Intracomm, patience: Patience) -> list[RankFacts]:
    own = processors()
    threads, variable = cores.threads(os.environ, len(own))
    if not variable:
        threads = cores.limited_threads(threads)
    rank = comm.Get_rank()
    with ranks_of_node(comm) as node:
        lowest = node.bcast(rank)
    facts = RankFacts(
        rank,
        lowest,
        MPI.Get_processor_name(),
        transports.kernel(),
        own,
        cores.cores_of(own),
        threads,
        variable,
        transports.chosen(),
        transports.slow_restarts(),
    )
    everyone = patience.gather(facts, "the facts of the ranks")
    order = sorted({facts.node for facts in everyone})
    return [replace(facts, node=order.index(facts.node)) for facts in everyone]


# cores


def _with_cores(measured: Measured, comm: MPI.Intracomm, patience: Patience) -> Measured:
    """With what each rank's cores do; what looks odd is measured again."""
    everyone = set(range(comm.Get_size()))
    measured = replace(measured, cores=_cores(measured, comm, patience, everyone))
    for _ in range(CONFIRMATIONS):
        again = set(busy_ranks(measured))
        if not again:
            break
        later = {result.rank: result for result in _cores(measured, comm, patience, again)}
        merged = [
            result.best_with(later[result.rank]) if result.rank in later else result
            for result in measured.cores
        ]
        measured = replace(measured, cores=merged)
    return measured


def _cores(
    measured: Measured, comm: MPI.Intracomm, patience: Patience, chosen: set[int]
) -> list[CoreResult]:
    """Measure the cores of some ranks, by turns where ranks are on one machine."""
    rank = comm.Get_rank()
    facts = measured.ranks[rank]
    patience.meet("the facts of the ranks")
    idle = cores.while_asleep(facts.processors)
    machine = [other.rank for other in measured.ranks if _same_machine(other, facts)]
    turn = machine.index(rank) % _TURNS
    turns = min(_TURNS, max(_sizes(measured)))
    own: list[CoreResult] = []
    for number in range(turns):
        patience.meet("a turn of the fixed computation")
        if number == turn and rank in chosen:
            own.append(cores.measure(rank, idle))
    everyone = patience.gather(own, "the fixed computation")
    return [result for results in everyone for result in results]


def _same_machine(one: RankFacts, other: RankFacts) -> bool:
    return one.node == other.node or bool(one.kernel and one.kernel == other.kernel)


def _sizes(measured: Measured) -> list[int]:
    """The number of ranks of the machine of each node."""
    return [
        sum(_same_machine(ranks[0], other) for other in measured.ranks) for ranks in measured.nodes
    ]


# links


def _with_pairs(measured: Measured, comm: MPI.Intracomm, patience: Patience) -> Measured:
    """With the links between nodes, and those within."""
    prober = Prober(comm, patience)
    leaders = [ranks[0].rank for ranks in measured.nodes]
    if len(leaders) > 1:
        before = transports.counters()
        rounds = tournament(len(leaders))
        measured = replace(measured, pairs=prober.play(rounds, leaders))
        own = NodeTraffic(
            measured.ranks[comm.Get_rank()].node,
            prober.carried,
            _difference(transports.counters(), before),
            transports.speeds(),
        )
        everyone = patience.gather(own, "the messages between nodes")
        measured = replace(measured, traffic=[everyone[rank] for rank in leaders])
        alone = [[pair] for pair in rounds[0][:_ALONE]]
        measured = replace(measured, alone=prober.play(alone, leaders))
        measured = _confirmed(measured, prober, leaders)
    measured = replace(measured, inside=_inside(measured, prober))
    link = first_link(measured)
    return replace(measured, eager=prober.eager(*link)) if link else measured


def first_link(measured: Measured) -> tuple[int, int, float] | None:
    """The ranks of the first link that was measured, and its bandwidth.

    On many nodes not every pair is measured. None: there is one rank.
    """
    if pairs := list(measured.best_pairs().values()):
        leaders = [ranks[0].rank for ranks in measured.nodes]
        return leaders[pairs[0].source], leaders[pairs[0].target], pairs[0].bandwidth
    if measured.inside:
        first = measured.inside[0]
        return first.source, first.target, first.bandwidth
    return None


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}


def _confirmed(measured: Measured, prober: Prober, leaders: list[int]) -> Measured:
    """Measure suspicious pairs again, each alone, as long as there is time."""
    end = time.perf_counter() + _CONFIRMING
    for _ in range(CONFIRMATIONS):
        pairs = sorted({(min(pair), max(pair)) for pair in slow_pairs(measured)})
        # rank 0's clock decides for all: the ranks must play the same rounds
        left = prober.decide(end - time.perf_counter())
        if not pairs or left <= 0:
            break
        again = prober.play([[pair] for pair in pairs], leaders, min(1.2, left / len(pairs)))
        merged = by_pair((*measured.alone, *again))
        measured = replace(measured, alone=list(merged.values()))
    return measured


def _inside(measured: Measured, prober: Prober) -> list[PairResult]:
    """Messages between the first ranks of each node; results name ranks."""
    members = list(range(len(measured.ranks)))
    pairs = [(ranks[0].rank, ranks[1].rank) for ranks in measured.nodes if len(ranks) > 1]
    if not pairs:
        return []
    if measured.one_kernel:
        return prober.play([[pair] for pair in pairs[:_ALONE]], members, 0.6)
    return prober.play([pairs], members, 1.2)
