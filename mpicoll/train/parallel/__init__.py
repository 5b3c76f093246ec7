"""How ranks share the work: buckets, overlapped reductions, sharded updates, strategies."""

from .buckets import Bucket
from .drift import DriftCheck, ParametersDiffer
from .generations import Generations, Plan, ShardsLost
from .memory import zeros
from .optimizer_step import bad_gradient
from .options import OptionKeywords, Options, Overlap, Precision, Reduction, StrategyName
from .reducer import Reducer, bucket_layout
from .strategy import Strategy
from .vote import Vote

__all__ = [
    "Bucket", "DriftCheck", "Generations", "OptionKeywords", "Options", "Overlap", "ParametersDiffer", "Plan",
    "Precision", "Reducer", "Reduction", "ShardsLost", "Strategy", "StrategyName", "Vote", "bad_gradient", "bucket_layout", "zeros",
]
