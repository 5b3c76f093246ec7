"""The benchmark harness: collectives with known results, fair comparison, and tuning."""

from . import profile, tuning
from .compare import Candidate, compare
from .gaussian import Errors, GaussianWorkload
from .predicted import predicted_entry
from .traced import traced
from .workload import SPLITS, Workload, least_share, method_of, operation

__all__ = [
    "Candidate",
    "Errors",
    "GaussianWorkload",
    "SPLITS",
    "Workload",
    "compare",
    "least_share",
    "method_of",
    "operation",
    "predicted_entry",
    "profile",
    "traced",
    "tuning",
]
