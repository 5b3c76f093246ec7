"""The doctor: measures what is slow or wrong on this machine, and says so in findings."""

from .examination import examine
from .findings import NOTE, SEVERITIES, SLOW, WRONG, Finding, contention, findings
from .model import fitted
from .page import describe
from .records import (
    CollectiveResult,
    CoreResult,
    Measured,
    NodeTraffic,
    PairResult,
    RankFacts,
)

__all__ = [
    "NOTE",
    "SEVERITIES",
    "SLOW",
    "WRONG",
    "CollectiveResult",
    "CoreResult",
    "Finding",
    "Measured",
    "NodeTraffic",
    "PairResult",
    "RankFacts",
    "contention",
    "describe",
    "examine",
    "findings",
    "fitted",
]
