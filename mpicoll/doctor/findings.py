"""Findings: what the measurements say is slow or wrong. Pure functions, without MPI.

A figure is compared with the median over nodes or ranks. What disturbs a measurement makes it
worse, never better, so each figure is the best of several, and each suspicion is measured again
before it is told: a node is slow only if it was slow each time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ..support.quirks import is_open_mpi
from ..support.units import format_bytes, format_seconds, many
from .records import CollectiveResult, CoreResult, Measured, PairResult, RankFacts

WRONG = "wrong"
SLOW = "slow"
NOTE = "note"
#: in the order in which they are told; a note leaves the exit status at 0
SEVERITIES = (WRONG, SLOW, NOTE)

#: of the median bandwidth of nodes, below which a node or a link is slow
SLOW_LINK = 0.6
#: of the median time of a message, above which a node is slow, if it is also so many seconds more
SLOW_LATENCY = 4.0
LEAST_LATENCY = 20e-6
#: of the median time of the computation
SLOW_CORE = 1.6
#: of the median bandwidth of the memory
SLOW_MEMORY = 0.5
#: of the median part of a core that ranks get, below which somebody else computes there
SHARE = 0.75
#: the part of the time that a core may be busy while all ranks sleep
BUSY = 0.3
#: a network where more than this part of the links is slow has levels, not faults
LEVELS = 0.25
#: what all pairs at once may take longer than one
CONTENTION = 1.5
#: what an Allreduce may take longer than the links need
COLLECTIVE = 1.5
#: seconds by which clocks of nodes may differ
CLOCKS = 1.0
#: eager limits in bytes outside of which somebody chose badly
_EAGER = (1 << 12, 1 << 20)
#: median absolute deviations that a figure is off, at least, to be an outlier
_DEVIATIONS = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that is slow, wrong, or worth knowing."""

    severity: str
    #: a word for programs: "node-slow", "core-shared"
    kind: str
    seen: str
    #: hosts and ranks
    where: str
    costs: str
    remedy: str
    #: the numbers of the nodes and of the ranks
    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


def findings(measured: Measured) -> list[Finding]:
    """All findings, the worst first."""
    every = [
        *_checksums(measured),
        *_results(measured),
        *_links(measured),
        *_latencies(measured),
        *_interfaces(measured),
        *_settings(measured),
        *_placement(measured),
        *_threads(measured),
        *_shares(measured),
        *_speeds(measured),
        *_clocks(measured),
        *_contention(measured),
        *_collectives(measured),
        *_kernel(measured),
    ]
    return sorted(every, key=lambda finding: SEVERITIES.index(finding.severity))


def outlier(value: float, others: Sequence[float], factor: float) -> bool:
    """Whether a value is above `factor` times the median of others, and beyond their spread.

    >>> outlier(9.0, [1.0, 1.1, 0.9], 1.6), outlier(1.5, [1.0, 1.1, 0.9], 1.6)
    (True, False)
    >>> outlier(9.0, [1.0, 5.0, 9.0, 20.0], 1.6)
    False
    """
    if not others:
        return False
    middle = median(others)
    spread = median(abs(other - middle) for other in others)
    return value > factor * middle and value - middle > _DEVIATIONS * spread


# links


def slow_pairs(measured: Measured) -> list[tuple[int, int]]:
    """Pairs (source, target) that look slow and should be measured again, alone.

    At most three for each node, the slowest first.
    """
    best = measured.best_pairs()
    normal = _normal(best.values())
    slow = sorted(
        (result for result in best.values() if result.bandwidth < SLOW_LINK * normal),
        key=lambda result: result.bandwidth,
    )
    late = [best[pair] for pair in _late_pairs(measured, best)]
    chosen: list[tuple[int, int]] = []
    counts: Counter[int] = Counter()
    for result in (*slow, *late):
        pair = result.source, result.target
        if pair not in chosen and max(counts[node] for node in pair) < 3:
            chosen.append(pair)
            counts.update(pair)
    return chosen


def _normal(results: Iterable[PairResult]) -> float:
    """The median over nodes of the best bandwidth that each node has with any other.

    A node with a slow link has only slow pairs, the others have normal ones beside those with it.
    """
    best: dict[int, float] = defaultdict(float)
    for result in results:
        for node in (result.source, result.target):
            best[node] = max(best[node], result.bandwidth)
    return median(best.values()) if best else 0.0


def capabilities(results: Iterable[PairResult]) -> tuple[dict[int, float], dict[int, float]]:
    """({node: the best bandwidth that it sends with}, {node: that it receives with})."""
    out: dict[int, float] = defaultdict(float)
    into: dict[int, float] = defaultdict(float)
    for result in results:
        out[result.source] = max(out[result.source], result.bandwidth)
        into[result.target] = max(into[result.target], result.bandwidth)
    return out, into


def _links(measured: Measured) -> Iterator[Finding]:
    best = measured.best_pairs()
    if not best:
        return
    normal = _normal(best.values())
    out, into = capabilities(best.values())
    slow_out = {node for node in out if out[node] < SLOW_LINK * normal}
    slow_into = {node for node in into if into[node] < SLOW_LINK * normal}
    if len(measured.hosts) > 2:
        yield from _slow_nodes(measured, normal, slow_out, slow_into)
    else:  # which of the two nodes it is cannot be told
        slow_out = slow_into = set()
    slow = [
        result
        for (source, target), result in best.items()
        if source not in slow_out
        and target not in slow_into
        and result.bandwidth < SLOW_LINK * normal
    ]
    if len(slow) > LEVELS * len(best) and len(measured.hosts) > 3:
        yield _levels(measured, slow, normal)
        return
    for result in slow:
        if result.sessions > 1:
            yield _slow_link(measured, result, best, normal)


def _slow_nodes(
    measured: Measured, normal: float, slow_out: set[int], slow_into: set[int]
) -> Iterator[Finding]:
    out, into = capabilities(measured.best_pairs().values())
    for node in sorted(slow_out | slow_into):
        host = measured.hosts[node]
        both = node in slow_out and node in slow_into
        does = "sends and receives" if both else "sends" if node in slow_out else "receives"
        rate = min(out[node] if node in slow_out else normal,
                   into[node] if node in slow_into else normal)  # fmt: skip
        other = f", and {'receives' if node in slow_out else 'sends'} as fast as others"
        yield Finding(
            SLOW,
            "node-slow" if both else "node-slow-one-way",
            f"{host} {does} at {rate_text(rate)}, the nodes' median is {rate_text(normal)}"
            f"{'' if both else other}",
            _node_text(measured, node),
            f"every collective over this node takes up to {normal / rate:.1f} times as long",
            (
                f"compare `ethtool` (speed, duplex, errors), cable and port of {host} with another"
                " node's, and see which other job or service uses its link; until then leave it"
                f" out: --exclude={host}"
            ),
            (node,),
        )


def _slow_link(
    measured: Measured,
    result: PairResult,
    best: dict[tuple[int, int], PairResult],
    normal: float,
) -> Finding:
    source = measured.hosts[result.source]
    target = measured.hosts[result.target]
    back = best.get((result.target, result.source))
    one_way = back is not None and back.bandwidth >= SLOW_LINK * normal
    text = f"from {source} to {target} {rate_text(result.bandwidth)} pass"
    if one_way and back:
        text += f", {rate_text(back.bandwidth)} the other way"
    else:
        text += f", the nodes' median is {rate_text(normal)}"
    which = "" if len(measured.hosts) > 2 else ", and with two nodes which end it is cannot be told"
    return Finding(
        SLOW,
        "link-slow-one-way" if one_way else "link-slow",
        text + which,
        f"{source} -> {target}",
        f"what passes between them takes {normal / result.bandwidth:.1f} times as long",
        "look at the switches and cables between these two, and at routes that only they use",
        (result.source, result.target),
    )


def _levels(measured: Measured, slow: Sequence[PairResult], normal: float) -> Finding:
    groups = switch_groups(measured.best_pairs().values(), len(measured.hosts))
    texts = [", ".join(measured.hosts[node] for node in group) for group in groups]
    between = median(result.bandwidth for result in slow)
    return Finding(
        NOTE,
        "levels",
        f"the network has levels: {rate_text(normal)} within groups of nodes,"
        f" {rate_text(between)} between them",
        "; ".join(texts[:6]) + ("; …" if len(texts) > 6 else ""),
        f"messages between groups take {normal / between:.1f} times as long",
        "ask for nodes of one group where a job fits into it (sbatch --switches=1)",
        tuple(node for group in groups for node in group),
    )


def switch_groups(results: Iterable[PairResult], count: int) -> list[list[int]]:
    """Groups of nodes between which bandwidth is normal: the connected components."""
    results = list(results)
    normal = _normal(results)
    slowest: dict[tuple[int, int], float] = {}
    for result in results:
        pair = min(result.source, result.target), max(result.source, result.target)
        slowest[pair] = min(slowest.get(pair, result.bandwidth), result.bandwidth)
    group_of = list(range(count))
    for (first, second), bandwidth in slowest.items():
        if bandwidth >= SLOW_LINK * normal:
            kept, gone = sorted((group_of[first], group_of[second]))
            group_of = [kept if group == gone else group for group in group_of]
    return [
        [node for node in range(count) if group_of[node] == group] for group in sorted(set(group_of))
    ]


def _late_pairs(
    measured: Measured, best: dict[tuple[int, int], PairResult]
) -> list[tuple[int, int]]:
    """The pairs of late nodes."""
    late = _late_nodes(measured)
    return [pair for pair in best if late & set(pair)]


def _least_latencies(measured: Measured) -> dict[int, float]:
    least: dict[int, float] = {}
    for result in measured.best_pairs().values():
        for node in (result.source, result.target):
            least[node] = min(least.get(node, result.latency), result.latency)
    return least


def _late_nodes(measured: Measured) -> set[int]:
    """Nodes whose messages are late; none where nodes share cores: there the scheduler decides."""
    if measured.one_kernel or len(measured.hosts) < 3:
        return set()
    least = _least_latencies(measured)
    normal = median(least.values()) if least else 0.0
    limit = max(SLOW_LATENCY * normal, normal + LEAST_LATENCY)
    return {node for node, seconds in least.items() if seconds > limit}


def _latencies(measured: Measured) -> Iterator[Finding]:
    least = _least_latencies(measured)
    for node in sorted(_late_nodes(measured)):
        normal = median(least.values())
        yield Finding(
            SLOW,
            "node-late",
            f"a message to or from {measured.hosts[node]} takes {format_seconds(least[node])},"
            f" the nodes' median is {format_seconds(normal)}",
            _node_text(measured, node),
            f"small collectives take up to {least[node] / normal:.0f} times as long",
            (
                "see whether it uses the same transport and interface as the others (below), power"
                " saving of its processors and network card, and what else runs there"
            ),
            (node,),
        )


def _checksums(measured: Measured) -> Iterator[Finding]:
    for (source, target), result in measured.best_pairs().items():
        if result.wrong:
            yield Finding(
                WRONG,
                "data-corrupted",
                f"{many(result.wrong, 'message')} from {measured.hosts[source]} to"
                f" {measured.hosts[target]} had other bytes on arrival",
                f"{measured.hosts[source]} -> {measured.hosts[target]}",
                "results are wrong, without an error",
                (
                    "take both nodes out of service; repeat with another transport of the MPI"
                    " library to see whether memory or network is to blame"
                ),
                (source, target),
            )


def _contention(measured: Measured) -> Iterator[Finding]:
    ratio = contention(measured)
    if ratio > CONTENTION and not measured.one_kernel:
        yield Finding(
            NOTE,
            "contention",
            f"when all pairs of nodes exchange messages at once each has 1/{ratio:.1f} of what one"
            " pair alone has",
            many(len(measured.hosts), "node"),
            f"collectives of large vectors take up to {ratio:.1f} times as long as links suggest",
            (
                "the switches carry less than the sum of the links: ask for nodes of one switch"
                " (sbatch --switches=1), or run `mpicoll tune` on the nodes as you get them"
            ),
        )


def contention(measured: Measured) -> float:
    """How many times faster a pair is alone than with all others at once: the median, at least 1."""
    together = {(result.source, result.target): result for result in measured.pairs}
    alone = {(result.source, result.target): result for result in measured.alone}
    ratios = [
        alone[pair].bandwidth / together[pair].bandwidth for pair in alone if pair in together
    ]
    return max(1.0, median(ratios)) if ratios and len(measured.hosts) > 3 else 1.0


def _clocks(measured: Measured) -> Iterator[Finding]:
    """Clocks of the day that differ, against the median of the others."""
    ahead: dict[int, list[float]] = defaultdict(list)
    for (_, target), result in measured.best_pairs().items():
        ahead[target].append(result.clock)
    for node, offsets in sorted(ahead.items()):
        off = median(offsets)
        if abs(off) > CLOCKS and len(measured.hosts) > 2:
            yield Finding(
                NOTE,
                "clock-off",
                f"the clock of {measured.hosts[node]} is {format_seconds(abs(off))}"
                f" {'ahead' if off > 0 else 'behind'}",
                _node_text(measured, node),
                "times in logs cannot be compared; munge, and with it SLURM, may refuse the node",
                "see `chronyc tracking` or `timedatectl` there",
                (node,),
            )


# cores


def _placement(measured: Measured) -> Iterator[Finding]:
    """Ranks that have to share cores, by their affinity masks."""
    for node, ranks in enumerate(measured.nodes):
        told: set[int] = set()
        masks = sorted({facts.processors for facts in ranks}, key=len)
        unions = [*masks, tuple(sorted({number for mask in masks for number in mask}))]
        for mask in unions:
            inside = [facts for facts in ranks if set(facts.processors) <= set(mask)]
            if len(inside) > len(mask) and not {facts.rank for facts in inside} <= told:
                told |= {facts.rank for facts in inside}
                yield _shared_core(measured, node, inside, mask)


def _shared_core(
    measured: Measured, node: int, inside: Sequence[RankFacts], mask: Sequence[int]
) -> Finding:
    every = {number for facts in measured.nodes[node] for number in facts.processors}
    unbound = set(mask) == every and len(mask) > 1
    advice = (
        "start fewer ranks on the node"
        if unbound
        else "let the launcher bind each rank to a core of its own: srun --cpu-bind=cores, mpirun"
        " --bind-to core (Open MPI), mpiexec -bind-to core (MPICH); see what sets the affinity"
    )
    idle = [name for facts in inside for name, value in facts.settings.items()
            if "yield_when_idle" in name and value == "1"]  # fmt: skip
    if is_open_mpi(measured.library) and not idle:
        advice += "; until then OMPI_MCA_mpi_yield_when_idle=1 makes waiting ranks yield"
    return Finding(
        SLOW,
        "core-shared",
        f"{many(len(inside), 'rank')} of {measured.hosts[node]} may only run on"
        f" {'processor' if len(mask) == 1 else 'processors'} {_numbers(mask)}",
        _ranks_text(measured, [facts.rank for facts in inside]),
        f"each computes {len(inside) / len(mask):.1f} times as long, and waits for the other's turn"
        " in every message",
        advice,
        (node,),
        tuple(facts.rank for facts in inside),
    )


def _threads(measured: Measured) -> Iterator[Finding]:
    """Threads of BLAS that have to share cores."""
    told: dict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for node, ranks in enumerate(measured.nodes):
        processors = {number for facts in ranks for number in facts.processors}
        total = sum(facts.threads for facts in ranks)
        own = [facts for facts in ranks if facts.threads > len(facts.processors)]
        if max(facts.threads for facts in ranks) < 2 or (total <= len(processors) and not own):
            continue
        most = max(own or ranks, key=lambda facts: facts.threads)
        text = f"{many(most.threads, 'BLAS thread')} each on {many(len(ranks), 'rank')}"
        share = max(1, len(processors) // len(ranks))
        told[text, most.threads_by, len(processors), share].append(node)
    for (text, variable, count, share), nodes in told.items():
        yield Finding(
            SLOW if variable else NOTE,
            "threads",
            f"{text} of a node, where {many(count, 'processor')} can run them"
            f" ({variable or 'no variable limits them'})",
            ", ".join(_node_text(measured, node) for node in nodes[:8]),
            "threads wait for each other in every BLAS call: often many times slower",
            f"set OMP_NUM_THREADS={share}, or fewer ranks of a node with more processors each",
            tuple(nodes),
        )


def _results(measured: Measured) -> Iterator[Finding]:
    """Ranks whose fixed computation has another result."""
    counts: Counter[int] = Counter(
        digest for result in measured.cores for digest in result.digests
    )
    if not counts:
        return
    right = counts.most_common(1)[0][0]
    for result in measured.cores:
        if result.digests != (right,):
            node = measured.ranks[result.rank].node
            yield Finding(
                WRONG,
                "core-wrong",
                f"rank {result.rank} computed something else than the others, from the same input",
                _ranks_text(measured, [result.rank]),
                "results are wrong, without an error",
                (
                    "take the node out of service, and let its maker's diagnosis run (memory, and"
                    " processors under load)"
                ),
                (node,),
                (result.rank,),
            )


def busy_ranks(measured: Measured) -> list[int]:
    """Ranks that seem not to have their core alone, or to be slow: to be measured again."""
    seconds = [result.seconds for result in measured.cores]
    memory = [1 / result.memory for result in measured.cores]
    company = {result.rank for result in _in_company(measured)}
    return [
        result.rank
        for result in measured.cores
        if result.rank in company
        or outlier(result.seconds, seconds, SLOW_CORE)
        or outlier(1 / result.memory, memory, 1 / SLOW_MEMORY)
    ]


def _in_company(measured: Measured) -> list[CoreResult]:
    """Results of ranks on whose processors somebody else computes.

    Ranks that may use the same processors count as the one of them that got most: what one of them
    gets there the others could have, too. They are compared with the other ranks, as all may share
    cores with each other.
    """
    by_place: dict[tuple[object, ...], list[CoreResult]] = defaultdict(list)
    for result in measured.cores:
        facts = measured.ranks[result.rank]
        by_place[facts.kernel or facts.node, facts.processors].append(result)
    best = {place: max(results, key=_share) for place, results in by_place.items()}
    every = [best[place].share for place, results in by_place.items() for _ in results]
    limit = SHARE * max(median(every), SHARE) if every else 0.0
    return [
        result
        for place, results in by_place.items()
        if best[place].share < limit
        and (best[place].busy > BUSY or best[place].share < SHARE**2)
        for result in results
    ]


def _share(result: CoreResult) -> float:
    return result.share


def _shares(measured: Measured) -> Iterator[Finding]:
    company = _in_company(measured)
    shares = [result.share for result in measured.cores]
    if measured.one_kernel and len(company) > len(shares) / 2:
        yield Finding(
            NOTE,
            "machine-busy",
            f"ranks get {100 * median(shares):.0f} % of a core: the machine that all nodes are on"
            " is busy",
            _ranks_text(measured, [result.rank for result in company]),
            "times measured here mean little",
            "repeat it when nothing else runs",
        )
        # a busy process that is seen is one of the rank's own host
        company = [result for result in company if result.other]
    by_place: dict[tuple[object, ...], list[CoreResult]] = defaultdict(list)
    for result in company:
        facts = measured.ranks[result.rank]
        by_place[facts.node, facts.processors].append(result)
    for results in by_place.values():
        yield _busy_core(measured, results)


def _busy_core(measured: Measured, results: Sequence[CoreResult]) -> Finding:
    """Of ranks of a node that may use the same processors."""
    ranks = [result.rank for result in results]
    best = max(results, key=_share)
    facts = measured.ranks[best.rank]
    other = f" ({best.other})" if best.other else ""
    one = len(ranks) == 1
    return Finding(
        SLOW,
        "core-busy",
        f"{'rank' if one else 'ranks'} {_numbers(ranks)} {'gets' if one else 'get'}"
        f" {100 * best.share:.0f} % of a core of {_numbers(facts.processors)}; while all ranks"
        f" slept {'it was' if len(facts.processors) == 1 else 'they were'}"
        f" {100 * best.busy:.0f} % busy{other}",
        _ranks_text(measured, ranks),
        f"computing takes {1 / best.share:.1f} times as long, and all other ranks wait for it",
        (
            f"see with `top` on {facts.host} what runs there: another job, a process left over,"
            " a daemon; ask for whole nodes (sbatch --exclusive)"
        ),
        (facts.node,),
        tuple(ranks),
    )


def _speeds(measured: Measured) -> Iterator[Finding]:
    """Cores and memory slower than others', by processor seconds."""
    seconds = [result.seconds for result in measured.cores]
    memory = [1 / result.memory for result in measured.cores]
    for result in measured.cores:
        facts = measured.ranks[result.rank]
        where = _ranks_text(measured, [result.rank])
        if outlier(result.seconds, seconds, SLOW_CORE):
            ratio = result.seconds / median(seconds)
            yield Finding(
                SLOW,
                "core-slow",
                f"rank {result.rank} needs {format_seconds(result.seconds)} of processor time for"
                f" what takes {format_seconds(median(seconds))} elsewhere",
                where,
                f"it computes {ratio:.1f} times as long, and all others wait for it",
                (
                    f"on {facts.host} compare `lscpu` (model, MHz), the governor (`cpupower"
                    " frequency-info`), temperature and power limits with another node"
                ),
                (facts.node,),
                (result.rank,),
            )
        elif outlier(1 / result.memory, memory, 1 / SLOW_MEMORY):
            typical = 1 / median(memory)
            yield Finding(
                SLOW,
                "memory-slow",
                f"rank {result.rank} copies memory at {result.memory / 1e9:.1f} GB/s, the median is"
                f" {typical / 1e9:.1f} GB/s",
                where,
                f"reductions take up to {typical / result.memory:.1f} times as long",
                (
                    f"on {facts.host} see whether the memory is of another NUMA node (`numactl"
                    " --show`), and whether all memory modules are there (`dmidecode -t memory`)"
                ),
                (facts.node,),
                (result.rank,),
            )


# settings


def _interfaces(measured: Measured) -> Iterator[Finding]:
    """Interfaces that carry the messages, where others would be better."""
    used = {traffic.node: traffic.used for traffic in measured.traffic if traffic.used}
    counts = Counter(used.values()).most_common()
    usual = counts[0][0] if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]) else ""
    for traffic in measured.traffic:
        own = traffic.used
        if not own:
            continue
        host = measured.hosts[traffic.node]
        if usual and own != usual and usual in traffic.speeds:
            yield Finding(
                SLOW,
                "interface",
                f"messages of {host} pass through {own}, those of other nodes through {usual},"
                " which it has too",
                _node_text(measured, traffic.node),
                "they may take another, slower network",
                f"set the interface on all ranks alike: {_interface_setting(measured, usual)}",
                (traffic.node,),
            )
    yield from _faster_interfaces(measured)


def _faster_interfaces(measured: Measured) -> Iterator[Finding]:
    told: dict[tuple[str, float, str, float], list[int]] = defaultdict(list)
    for traffic in measured.traffic:
        speed = traffic.speeds.get(traffic.used, 0.0)
        name = max(traffic.speeds, key=lambda name: traffic.speeds[name], default="")
        if traffic.used and speed and traffic.speeds[name] >= 4 * speed:
            told[traffic.used, speed, name, traffic.speeds[name]].append(traffic.node)
    for (used, speed, name, best), nodes in told.items():
        yield Finding(
            SLOW,
            "interface-slow",
            f"messages pass through {used} ({rate_text(speed / 8)}), though {name}"
            f" ({rate_text(best / 8)}) is up",
            ", ".join(measured.hosts[node] for node in nodes[:8]),
            f"the network carries up to {best / speed:.0f} times less than it could",
            (
                f"{_interface_setting(measured, name)}; for InfiniBand or another fabric use an MPI"
                " library built for it (UCX or libfabric), as the cluster's module is"
            ),
            tuple(nodes),
        )


def _interface_setting(measured: Measured, name: str) -> str:
    """The setting that names an interface."""
    if is_open_mpi(measured.library):
        return f"OMPI_MCA_btl_tcp_if_include={name}"
    return f"FI_TCP_IFACE={name}, with UCX UCX_NET_DEVICES={name}"


def _settings(measured: Measured) -> Iterator[Finding]:
    """Settings that differ between ranks, or are known to hurt."""
    names = sorted({name for facts in measured.ranks for name in facts.settings})
    for name in names:
        values = Counter(facts.settings.get(name, "unset") for facts in measured.ranks)
        if len(values) < 2:
            continue
        usual = values.most_common(1)[0][0]
        odd = [facts for facts in measured.ranks if facts.settings.get(name, "unset") != usual]
        others = ", ".join(sorted({facts.settings.get(name, "unset") for facts in odd}))
        yield Finding(
            SLOW,
            "settings-differ",
            f"{name} is {others} on {many(len(odd), 'rank')}, and {usual} on the others",
            _ranks_text(measured, [facts.rank for facts in odd]),
            "ranks may use different transports or networks, or hang",
            "set it for the whole job: in the job script, or with the launcher's option (-genv, -x)",
            tuple(sorted({facts.node for facts in odd})),
            tuple(facts.rank for facts in odd),
        )
    yield from _yielding(measured)
    for facts in measured.ranks[:1]:
        limit = facts.settings.get("OMPI_MCA_btl_tcp_eager_limit", "")
        if limit.isdecimal() and not _EAGER[0] <= int(limit) <= _EAGER[1]:
            yield Finding(
                NOTE,
                "eager-limit",
                f"OMPI_MCA_btl_tcp_eager_limit is {limit}, the default is {format_bytes(64 << 10)}",
                "all ranks",
                "a small limit costs a round trip for each short message, a large one memory",
                "unset it, and measure with `mpicoll bench` whether it helped",
            )


def _yielding(measured: Measured) -> Iterator[Finding]:
    """Ranks that yield although each has a core."""
    name = "OMPI_MCA_mpi_yield_when_idle"
    yielding = [facts for facts in measured.ranks if facts.settings.get(name) in ("1", "true")]
    crowded = measured.one_kernel or any(
        len(ranks) > len({number for facts in ranks for number in facts.processors})
        for ranks in measured.nodes
    )
    if yielding and not crowded:
        yield Finding(
            NOTE,
            "yields",
            f"{name}=1, although each rank has a core",
            "all ranks",
            "small messages take longer: a waiting rank gives its core away before it looks again",
            "unset it",
        )


# collectives


def _collectives(measured: Measured) -> Iterator[Finding]:
    for result in measured.collectives:
        gain = result.native / result.auto if result.auto else 1.0
        behind = result.bound and result.native > COLLECTIVE * result.bound
        if gain < 1.2 and not behind:
            continue
        yield Finding(
            NOTE,
            "collective",
            collective_text(result),
            many(len(measured.ranks), "rank"),
            (
                f"{format_seconds(result.native - result.auto)} in each call"
                if gain > 1
                else "the time of each call"
            ),
            (
                "use mpicoll.Communicator in the program, which chose"
                f" {result.algorithm}; `mpicoll tune` measures all sizes"
                if gain >= 1.2
                else "see the links above first; `mpicoll tune` measures all algorithms"
            ),
        )


def collective_text(result: CollectiveResult) -> str:
    """What a collective takes, in a sentence."""
    name = f"MPI_{result.collective.capitalize()} of {format_bytes(result.nbytes)}"
    if result.bound:
        return (
            f"{name} takes {result.native / result.bound:.2f} times what the links allow; mpicoll"
            f" takes {result.auto / result.bound:.2f}"
        )
    return f"{name} takes {format_seconds(result.native)}; mpicoll {format_seconds(result.auto)}"


def _kernel(measured: Measured) -> Iterator[Finding]:
    if measured.one_kernel:
        yield Finding(
            NOTE,
            "one-kernel",
            f"{many(len(measured.hosts), 'node')} share one kernel: containers or namespaces of one"
            " machine",
            ", ".join(measured.hosts[:8]) + (", …" if len(measured.hosts) > 8 else ""),
            "their ranks share cores, so latencies are the scheduler's and are not compared",
            "nothing, where that is meant",
        )


# texts


def rate_text(bandwidth: float) -> str:
    """Bytes per second as a rate in bits per second with three digits.

    >>> rate_text(12.5e6), rate_text(12.5e9)
    ('100 Mb/s', '100 Gb/s')
    """
    bits = 8 * bandwidth
    for unit, factor in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bits >= 0.9995 * factor:
            return f"{bits / factor:.{3 if bits < 999.5 * factor else 6}g} {unit}"
    return f"{bits:.0f} b/s"


def _numbers(numbers: Sequence[int]) -> str:
    """Numbers in ranges.

    >>> _numbers([0, 1, 2, 5])
    '0-2,5'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _ranks_text(measured: Measured, ranks: Sequence[int]) -> str:
    """Hosts with their ranks."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_host[measured.ranks[rank].host].append(rank)
    texts = [
        f"{host} ({'rank' if len(own) == 1 else 'ranks'} {_numbers(own)})"
        for host, own in by_host.items()
    ]
    return ", ".join(texts[:8]) + (", …" if len(texts) > 8 else "")


def _node_text(measured: Measured, node: int) -> str:
    return _ranks_text(measured, [facts.rank for facts in measured.nodes[node]])
