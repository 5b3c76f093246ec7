"""PyTorch models trained with mpicoll: `wrap`."""

from .data_parallel import DataParallel
from .wrapping import wrap

__all__ = ["DataParallel", "wrap"]
