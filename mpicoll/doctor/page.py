"""The page that a person reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ..support.units import format_seconds, many
from .collective_findings import collective_text
from .finding import NOTE, Finding, rate_text
from .link_findings import contention
from .records import Measured


def describe(measured: Measured, found: Sequence[Finding]) -> list[tuple[str, str]]:
    """(heading, text) of each paragraph: what was measured, the findings, and their number."""
    faults = sum(finding.severity != NOTE for finding in found)
    last = f"{many(faults, 'finding')} to act on" if faults else "nothing slow or wrong was found"
    return [*_summary(measured), *_paragraphs(found), ("result", last)]


def _summary(measured: Measured) -> Iterator[tuple[str, str]]:
    where = f"{many(len(measured.ranks), 'rank')} on {many(len(measured.hosts), 'node')}"
    yield (
        "examined",
        f"{where}, {measured.library} over {measured.transport}, in {measured.seconds:.0f} s",
    )
    pairs = list(measured.best_pairs().values())
    if pairs:
        rates = [result.bandwidth for result in pairs]
        late = format_seconds(median(result.latency for result in pairs))
        together = contention(measured)
        yield (
            "links",
            f"{rate_text(median(rates))} in the median ({rate_text(min(rates))} to"
            f" {rate_text(max(rates))}), {late} per message, {together:.1f} times longer with all"
            f" at once; {many(len(pairs), 'direction')}, checksums compared",
        )
    used = sorted({traffic.used for traffic in measured.traffic} - {""})
    if used:
        yield "interfaces", ", ".join(used)
    if measured.inside:
        rate = median(result.bandwidth for result in measured.inside)
        late = format_seconds(median(result.latency for result in measured.inside))
        yield "in a node", f"{rate_text(rate)}, {late} per message"
    if measured.cores:
        seconds = [result.seconds for result in measured.cores]
        share = min(result.share for result in measured.cores)
        memory = median(result.memory for result in measured.cores)
        yield (
            "cores",
            f"{format_seconds(min(seconds))} to {format_seconds(max(seconds))} for the fixed"
            f" computation, {100 * share:.0f} % of a core or more; memory {memory / 1e9:.1f} GB/s",
        )
    for result in measured.collectives:
        yield "collectives", f"{collective_text(result)} ({result.algorithm})"


def _paragraphs(found: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    for finding in found:
        yield (
            finding.severity,
            f"{finding.seen}. Where: {finding.where}. It costs: {finding.costs}. What to do:"
            f" {finding.remedy}.",
        )
