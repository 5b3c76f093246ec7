"""Data sets, sampling, and how batches reach the ranks."""

from .dataset import Batch, Dataset
from .loader import LocalLoader, ScatteringLoader
from .prefetch import prefetched
from .sampler import Sampler, shares
from .sources import digits, load, synthetic

__all__ = [
    "Batch",
    "Dataset",
    "LocalLoader",
    "Sampler",
    "ScatteringLoader",
    "digits",
    "load",
    "prefetched",
    "shares",
    "synthetic",
]
