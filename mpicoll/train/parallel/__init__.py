"""How ranks share the work: buckets, overlapped reductions, sharded updates, strategies."""

from .backup import Backup, RecoveryPlan, ShardsLost
from .buckets import Bucket
from .drift import DriftCheck, ParametersDiffer
from .norm import squared_norm_of
from .optimizer_step import bad_gradient
from .options import OptionKeywords, Options, Overlap, Precision, Reduction, StrategyName
from .reducer import Reducer
from .strategy import Strategy
from .vote import Vote

__all__ = [
    "Backup",
    "Bucket",
    "DriftCheck",
    "OptionKeywords",
    "Options",
    "Overlap",
    "ParametersDiffer",
    "Precision",
    "RecoveryPlan",
    "Reducer",
    "Reduction",
    "ShardsLost",
    "Strategy",
    "StrategyName",
    "Vote",
    "bad_gradient",
    "squared_norm_of",
]
