"""How ranks share the work: buckets, reductions overlapped with backward, sharded updates, the strategies.

May import: errors, support, algorithms, train.data, train.optim, train.monitor.
"""

from .buckets import Layout
from .options import Options
from .reducer import Buckets
from .strategy import Strategy

__all__ = ["Buckets", "Layout", "Options", "Strategy"]
