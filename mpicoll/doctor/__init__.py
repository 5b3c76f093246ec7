"""The doctor: measures what is slow or wrong on this machine, and says so in findings."""

from .examination import examine
from .finding import NOTE, SEVERITIES, SLOW, WRONG, Finding
from .findings import findings
from .link_findings import contention
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
