"""A named, shaped stretch of a model's flat parameters."""

import math
from typing import NamedTuple


class Tensor(NamedTuple):
    """A parameter of the model: name, shape, and the number of the layer that needs it."""

    name: str
    shape: tuple[int, ...]
    layer: int

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)
