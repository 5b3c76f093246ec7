"""Optimizers on flat arrays, learning rates, loss scales."""

from . import lr_schedules
from .base import Optimizer, pieces
from .loss_scale import (
    HOPELESS,
    LossScale,
    clip_factor,
    first_bad,
    square_of_words,
    squared_norm,
    whole_squares,
)
from .optimizers import OPTIMIZERS, SGD, Adam, AdamW

__all__ = [
    "HOPELESS",
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "LossScale",
    "Optimizer",
    "clip_factor",
    "first_bad",
    "lr_schedules",
    "pieces",
    "square_of_words",
    "squared_norm",
    "whole_squares",
]
