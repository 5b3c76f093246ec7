"""The Python halves of works, kept while PyTorch may still ask its C++ halves: before 2.7 these do not keep them.

A C++ half without its Python half waits for ever (pytorch/pytorch pull request 146376).
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import torch

#: whether PyTorch keeps them
ARE_KEPT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
#: works that C++ may not have asked yet
_MOST = 1024
#: what refers to a work that nobody but `Halves` has: its list, the copy of it, a name, and the call that counts
_OURS = 4


class Halves:
    """Those of the latest works: whole while they are under way or somebody has them in Python, then without tensors."""

    def __init__(self) -> None:
        self._whole: list[Any] = []
        self._empty: deque[Any] = deque(maxlen=_MOST)

    def keep(self, work: Any) -> None:
        """Keep this one, and let go of the tensors of those that are over."""
        for one in list(self._whole):
            if one.is_over and sys.getrefcount(one) == _OURS:
                self._whole.remove(one)
                one.drop_tensors()
                self._empty.append(one)
        self._whole.append(work)
