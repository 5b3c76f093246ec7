"""Data sets, sampling, and how batches reach the ranks.

May import: errors, support.
"""

from .dataset import Dataset
from .loader import LocalFeed, ServerFeed
from .prefetch import prefetched
from .sampler import Sampler, shares
from .sources import digits, load, synthetic

__all__ = [
    "Dataset", "LocalFeed", "Sampler", "ServerFeed", "digits", "load", "prefetched", "shares",
    "synthetic",
]
