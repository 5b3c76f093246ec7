"""Findings about the links between nodes, and what passes through them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from ..support.units import format_seconds, many
from .finding import NOTE, SLOW, WRONG, Finding, node_text, rate_text
from .records import Measured, PairResult, by_pair

#: of the median bandwidth of nodes, below which a node or a link is slow
SLOW_LINK = 0.6
#: of the median time of a message, above which a node is slow, if it is also so many seconds more
SLOW_LATENCY = 4.0
LEAST_LATENCY = 20e-6
#: a network where more than this part of the links is slow has levels, not faults
LEVELS = 0.25
#: what all pairs at once may take longer than one
CONTENTION = 1.5
#: seconds by which clocks of nodes may differ
CLOCKS = 1.0


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


def slow_links(measured: Measured) -> Iterator[Finding]:
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
            node_text(measured, node),
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
        [node for node in range(count) if group_of[node] == group]
        for group in sorted(set(group_of))
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


def late_messages(measured: Measured) -> Iterator[Finding]:
    least = _least_latencies(measured)
    for node in sorted(_late_nodes(measured)):
        normal = median(least.values())
        yield Finding(
            SLOW,
            "node-late",
            f"a message to or from {measured.hosts[node]} takes {format_seconds(least[node])},"
            f" the nodes' median is {format_seconds(normal)}",
            node_text(measured, node),
            f"small collectives take up to {least[node] / normal:.0f} times as long",
            (
                "see whether it uses the same transport and interface as the others (below), power"
                " saving of its processors and network card, and what else runs there"
            ),
            (node,),
        )


def broken_messages(measured: Measured) -> Iterator[Finding]:
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


def contended_links(measured: Measured) -> Iterator[Finding]:
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
    """How many times faster a pair is alone than beside all others: the median, at least 1."""
    together = by_pair(measured.pairs)
    alone = by_pair(measured.alone)
    ratios = [
        alone[pair].bandwidth / together[pair].bandwidth for pair in alone if pair in together
    ]
    return max(1.0, median(ratios)) if ratios and len(measured.hosts) > 3 else 1.0


def clock_differences(measured: Measured) -> Iterator[Finding]:
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
                node_text(measured, node),
                "times in logs cannot be compared; munge, and with it SLURM, may refuse the node",
                "see `chronyc tracking` or `timedatectl` there",
                (node,),
            )
