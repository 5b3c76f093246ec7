"""Random trainings, each compared with a reference in plain NumPy that knows nothing of buckets, shards or overlap.

`drawing` draws a configuration as plain data, `models` makes its model, `reference` trains the same in one process,
`comparing` runs a `Trainer` on all ranks and tells how it differs.
"""

from .comparing import differences
from .drawing import draw, grid

__all__ = ["differences", "draw", "grid"]
