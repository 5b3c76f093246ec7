"""Findings about cores: who shares them, what they compute, and how fast."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from ..support.quirks import is_open_mpi
from ..support.units import format_seconds, many
from .finding import NOTE, SLOW, WRONG, Finding, node_text, numbers_text, outlier, ranks_text
from .records import CoreResult, Measured, RankFacts, processors_of

#: of the median time of the computation
SLOW_CORE = 1.6
#: of the median bandwidth of the memory
SLOW_MEMORY = 0.5
#: of the median part of a core that ranks get, below which somebody else computes there
SHARE = 0.75
#: the part of the time that a core may be busy while all ranks sleep
BUSY = 0.3


def shared_cores(measured: Measured) -> Iterator[Finding]:
    """Ranks that have to share cores, by their affinity masks."""
    for node, ranks in enumerate(measured.nodes):
        told: set[int] = set()
        masks = sorted({facts.processors for facts in ranks}, key=len)
        unions = [*masks, tuple(sorted(processors_of(ranks)))]
        for mask in unions:
            inside = [facts for facts in ranks if set(facts.processors) <= set(mask)]
            if len(inside) > len(mask) and not {facts.rank for facts in inside} <= told:
                told |= {facts.rank for facts in inside}
                yield _shared_core(measured, node, inside, mask)


def _shared_core(
    measured: Measured, node: int, inside: Sequence[RankFacts], mask: Sequence[int]
) -> Finding:
    unbound = set(mask) == processors_of(measured.nodes[node]) and len(mask) > 1
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
        f" {'processor' if len(mask) == 1 else 'processors'} {numbers_text(mask)}",
        ranks_text(measured, [facts.rank for facts in inside]),
        f"each computes {len(inside) / len(mask):.1f} times as long, and waits for the other's turn"
        " in every message",
        advice,
        (node,),
        tuple(facts.rank for facts in inside),
    )


def too_many_threads(measured: Measured) -> Iterator[Finding]:
    """Threads of BLAS that have to share cores."""
    told: dict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for node, ranks in enumerate(measured.nodes):
        processors = processors_of(ranks)
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
            ", ".join(node_text(measured, node) for node in nodes[:8]),
            "threads wait for each other in every BLAS call: often many times slower",
            f"set OMP_NUM_THREADS={share}, or fewer ranks of a node with more processors each",
            tuple(nodes),
        )


def wrong_results(measured: Measured) -> Iterator[Finding]:
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
                ranks_text(measured, [result.rank]),
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


def busy_cores(measured: Measured) -> Iterator[Finding]:
    company = _in_company(measured)
    shares = [result.share for result in measured.cores]
    if measured.one_kernel and len(company) > len(shares) / 2:
        yield Finding(
            NOTE,
            "machine-busy",
            f"ranks get {100 * median(shares):.0f} % of a core: the machine that all nodes are on"
            " is busy",
            ranks_text(measured, [result.rank for result in company]),
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
        f"{'rank' if one else 'ranks'} {numbers_text(ranks)} {'gets' if one else 'get'}"
        f" {100 * best.share:.0f} % of a core of {numbers_text(facts.processors)}; while all ranks"
        f" slept {'it was' if len(facts.processors) == 1 else 'they were'}"
        f" {100 * best.busy:.0f} % busy{other}",
        ranks_text(measured, ranks),
        f"computing takes {1 / best.share:.1f} times as long, and all other ranks wait for it",
        (
            f"see with `top` on {facts.host} what runs there: another job, a process left over,"
            " a daemon; ask for whole nodes (sbatch --exclusive)"
        ),
        (facts.node,),
        tuple(ranks),
    )


def slow_cores(measured: Measured) -> Iterator[Finding]:
    """Cores and memory slower than others', by processor seconds."""
    seconds = [result.seconds for result in measured.cores]
    memory = [1 / result.memory for result in measured.cores]
    for result in measured.cores:
        facts = measured.ranks[result.rank]
        where = ranks_text(measured, [result.rank])
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
