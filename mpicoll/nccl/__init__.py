"""Calls that NVIDIA's NCCL serves, through CuPy, where they are asked for."""

from .nccl_call import NcclCall, is_unmet, lacks, meet, refuses

__all__ = [
    "NcclCall", "is_unmet", "lacks", "meet", "refuses",
]  # fmt: skip
