"""How ranks share the work: buckets, overlapped reductions, sharded updates, strategies."""

from .backup import WINDOW, Backup, RecoveryPlan, ShardsLost
from .buckets import Bucket
from .drift import DriftCheck, ParametersDiffer
from .feedback import ErrorFeedback, Remainder
from .fitting import fitted
from .local_steps import LocalSteps
from .masters import take_written
from .norm import squared_norm_of
from .optimizer_step import bad_gradient
from .reducer import Reducer, SendOrder
from .strategy import Strategy
from .vote import Vote

__all__ = [
    "WINDOW",
    "Backup",
    "Bucket",
    "DriftCheck",
    "ErrorFeedback",
    "LocalSteps",
    "ParametersDiffer",
    "RecoveryPlan",
    "Reducer",
    "Remainder",
    "SendOrder",
    "ShardsLost",
    "Strategy",
    "Vote",
    "bad_gradient",
    "fitted",
    "squared_norm_of",
    "take_written",
]
