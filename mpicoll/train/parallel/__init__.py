"""How ranks share the work: buckets, overlapped reductions, sharded updates, strategies."""

from .bucket_reducer import BucketReducer, bucket_layout
from .buckets import Bucket
from .drift import DriftCheck, ParametersDiffer
from .generations import Generations, Plan, ShardsLost
from .memory import zeros
from .optimizer_step import bad_gradient
from .options import OptionKeywords, Options, Overlap, Precision, Reduction, StrategyName
from .reducer import Reducer
from .strategy import Strategy

__all__ = [
    "Bucket", "BucketReducer", "DriftCheck", "Generations", "OptionKeywords", "Options", "Overlap", "ParametersDiffer", "Plan",
    "Precision", "Reducer", "Reduction", "ShardsLost", "Strategy", "StrategyName", "bad_gradient", "bucket_layout", "zeros",
]
