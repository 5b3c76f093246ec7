"""The Python halves of works, kept while C++ may use the works: PyTorch before 2.7 drops them.

A C++ half without its Python half waits forever (pytorch/pytorch pull request 146376).
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import torch

#: whether PyTorch keeps the Python halves
ARE_KEPT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
#: works that C++ may not have asked yet
_MOST = 1024
#: references to a work that only `Halves` refers to: of its list, of the copy of the list, of the
#: loop's variable, and of the call that counts
_OWN_REFERENCES = 4


class Halves:
    """The latest works, with their tensors until they are over and no other code refers to them."""

    def __init__(self) -> None:
        self._whole: list[Any] = []
        self._without_tensors: deque[Any] = deque(maxlen=_MOST)

    def keep(self, work: Any) -> None:
        """Keep a work, and drop the tensors of works that are over."""
        for kept in list(self._whole):
            if kept.is_over and sys.getrefcount(kept) == _OWN_REFERENCES:
                self._whole.remove(kept)
                kept.drop_tensors()
                self._without_tensors.append(kept)
        self._whole.append(work)
