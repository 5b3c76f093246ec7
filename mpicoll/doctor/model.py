"""The model of the cluster that the measurements make: a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ..errors import ArgumentError
from ..simulate import ClusterModel, ModelLevel
from .link_findings import contention, switch_groups
from .records import Measured, PairResult


def fitted(measured: Measured) -> ClusterModel:
    """The model: medians of links, whose outliers are findings and not the rule.

    Raises ArgumentError where there is one rank, and so no link.
    """
    between = list(measured.best_pairs().values())
    inside = list(measured.inside)
    if not between and not inside:
        raise ArgumentError("--output: a model needs two ranks or more, got one")
    levels: list[ModelLevel] = []
    ranks = max(len(names) for names in measured.nodes)
    if inside and between:
        levels.append(ModelLevel("node", ranks, *_typical(inside)))
    groups = switch_groups(between, len(measured.hosts)) if len(measured.hosts) > 3 else []
    sizes = [len(group) for group in groups]
    across = [result for result in between if not _together(result, groups)]
    if len(groups) > 1 and min(sizes) > 1 and across:
        within = [result for result in between if _together(result, groups)]
        levels.append(ModelLevel("switch", round(median(sizes)), *_typical(within)))
        between = across
    alpha, bandwidth = _typical(between or inside)
    speeds = [result.memory for result in measured.cores]
    copying = 2 / median(speeds) if speeds else 0.0
    return ClusterModel(
        measured.library,
        measured.transport,
        alpha,
        bandwidth,
        contention(measured),
        # a reduction reads two bytes and writes one, a copy reads and writes one
        gamma=1.5 * copying,
        copying=copying,
        levels=tuple(levels),
        eager=measured.eager,
    )


def _together(result: PairResult, groups: Iterable[list[int]]) -> bool:
    return any(result.source in group and result.target in group for group in groups)


def _typical(results: Iterable[PairResult]) -> tuple[float, float]:
    """The median seconds per message, and bytes per second."""
    results = list(results)
    latencies = [result.latency for result in results]
    return median(latencies), median(result.bandwidth for result in results)
