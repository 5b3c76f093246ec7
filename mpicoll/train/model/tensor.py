"""A named, shaped stretch of a model's flat parameters."""

import math
from typing import NamedTuple


class Tensor(NamedTuple):
    """A parameter of the model: its name and shape, and the layer (a number) whose computation
    needs it.
    """

    name: str
    shape: tuple[int, ...]
    layer: int

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)
