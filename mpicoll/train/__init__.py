"""Data-parallel training on MPI: a small network, optimizers on flat arrays, strategies.

>>> from mpicoll.train import Adam, mlp
>>> model = mlp([64, 32, 10], seed=1)
>>> model.parameters.size, model.describe()
(2410, ['Linear(64, 32)', 'ReLU()', 'Linear(32, 10)'])

Names are imported when they are first used (PEP 562): only `Trainer`, `living` and `surviving` need
an MPI library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Dataset, Sampler, digits
    from .elastic import living, surviving
    from .model import Linear, Model, ReLU, mlp
    from .optim import SGD, Adam, AdamW
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

_HOME = {
    **dict.fromkeys(("Dataset", "Sampler", "digits"), ".data"),
    **dict.fromkeys(("living", "surviving"), ".elastic"),
    **dict.fromkeys(("Linear", "Model", "ReLU", "mlp"), ".model"),
    **dict.fromkeys(("SGD", "Adam", "AdamW"), ".optim"),
    "Trainer": ".trainer",
}


def _resolve(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
    return value


if not TYPE_CHECKING:  # else any name would be one
    __getattr__ = _resolve
