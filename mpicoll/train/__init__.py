"""Data-parallel training on MPI: a small network, optimizers on flat arrays, strategies.

>>> from mpicoll.train import Adam, mlp
>>> model = mlp([64, 32, 10], seed=1)
>>> model.parameters.size, model.describe()
(2410, ['Linear(64, 32)', 'ReLU()', 'Linear(32, 10)'])

Only `Trainer`, `living` and `surviving` need an MPI library; they are imported when they are first
used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .data import Dataset, Sampler, digits
from .model import Linear, Model, ReLU, mlp
from .optim import SGD, Adam, AdamW

if TYPE_CHECKING:
    from .elastic import living, surviving
    from .trainer import Trainer

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Dataset",
    "Linear",
    "Model",
    "ReLU",
    "Sampler",
    "Trainer",
    "digits",
    "living",
    "mlp",
    "surviving",
]

_LATER = {"Trainer": ".trainer", "living": ".elastic", "surviving": ".elastic"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
