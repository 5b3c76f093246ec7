"""Models on flat NumPy or CuPy arrays."""

from typing import TypeAlias

from .function import Arrays, FunctionModel, LossFunction
from .hooks import Hooks
from .layers import Linear, ReLU
from .sequential import Model, mlp
from .tensor import Tensor

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
