"""PyTorch models trained with mpicoll: `wrap`.

May import: algorithms, errors, support, communicator, train.model, train.optim, train.parallel, train.monitor.
"""

from .data_parallel import DataParallel
from .wrapping import wrap

__all__ = ["DataParallel", "wrap"]
