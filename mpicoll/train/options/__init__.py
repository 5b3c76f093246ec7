"""The options of a trainer, checked together; neither MPI nor NumPy is needed to list them."""

from .options import (
    LARGEST,
    PAIRWISE,
    RING,
    SHARDED,
    WITHIN_NODE,
    OptionKeywords,
    Options,
    Overlap,
    Precision,
    Reduction,
    StrategyName,
    fixed_scale,
)

__all__ = [
    "LARGEST",
    "PAIRWISE",
    "RING",
    "SHARDED",
    "WITHIN_NODE",
    "OptionKeywords",
    "Options",
    "Overlap",
    "Precision",
    "Reduction",
    "StrategyName",
    "fixed_scale",
]
