"""Models on flat NumPy or CuPy arrays.

May import: support.
"""

from .function import FunctionModel
from .layers import Linear, Model, ReLU, mlp
from .tensor import Tensor

__all__ = ["FunctionModel", "Linear", "Model", "ReLU", "Tensor", "mlp"]
