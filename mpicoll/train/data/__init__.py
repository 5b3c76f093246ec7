"""Data sets, sampling, and how batches reach the ranks."""

from .dataset import Batch, Dataset
from .loader import LocalLoader, ScatteringLoader
from .sampler import Sampler
from .sources import digits, load, synthetic

__all__ = [
    "Batch",
    "Dataset",
    "LocalLoader",
    "Sampler",
    "ScatteringLoader",
    "digits",
    "load",
    "synthetic",
]
