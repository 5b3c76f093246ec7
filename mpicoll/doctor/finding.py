"""One finding, how a figure is judged, and how figures and places are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .records import Measured

WRONG = "wrong"
SLOW = "slow"
NOTE = "note"
#: in the order in which they are told; a note leaves the exit status at 0
SEVERITIES = (WRONG, SLOW, NOTE)

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


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers in ranges.

    >>> numbers_text([0, 1, 2, 5])
    '0-2,5'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def ranks_text(measured: Measured, ranks: Sequence[int]) -> str:
    """Hosts with their ranks."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_host[measured.ranks[rank].host].append(rank)
    texts = [
        f"{host} ({'rank' if len(own) == 1 else 'ranks'} {numbers_text(own)})"
        for host, own in by_host.items()
    ]
    return ", ".join(texts[:8]) + (", …" if len(texts) > 8 else "")


def node_text(measured: Measured, node: int) -> str:
    return ranks_text(measured, [facts.rank for facts in measured.nodes[node]])
