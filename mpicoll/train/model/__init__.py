"""Models on flat NumPy or CuPy arrays."""

from typing import TypeAlias

from .function import Arrays, FunctionModel, LossFunction
from .layers import Linear, ReLU
from .parts import Hooks, Tensor
from .sequential import Model, mlp

#: what a strategy can train
AnyModel: TypeAlias = Model | FunctionModel

__all__ = [
    "AnyModel",
    "Arrays",
    "FunctionModel",
    "Hooks",
    "Linear",
    "LossFunction",
    "Model",
    "ReLU",
    "Tensor",
    "mlp",
]
