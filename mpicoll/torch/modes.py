"""What modes of PyTorch see of the calls: TorchDispatchMode, and CommDebugMode, which counts them.

PyTorch's own groups go through its dispatcher, as operators of the library "c10d" that end in a
backend in C++. Calls of a group made in Python bypass it. Where a mode is active, it gets the
operator, with the group's call in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode_temporarily, is_in_torch_dispatch_mode

_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack
#: PyTorch's operators, by the methods of a process group
OPERATORS = {
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "broadcast": "broadcast_",
    "reduce": "reduce_",
    "allgather": "allgather_",
    "allgather_coalesced": "allgather_coalesced_",
    "all_gather_single": "_allgather_base_",
    "_allgather_base": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "allgather_into_tensor_coalesced": "allgather_into_tensor_coalesced_",
    "gather": "gather_",
    "scatter": "scatter_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "_reduce_scatter_base": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced_",
    "alltoall": "alltoall_",
    "all_to_all_single": "alltoall_base_",
    "alltoall_base": "alltoall_base_",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv_",
}


def show_calls(kind: type) -> type:
    """A class decorator: let modes see the calls of groups of this class."""
    for method, operator in OPERATORS.items():
        setattr(kind, method, _shown(getattr(kind, method), operator))
    return kind


def _shown(method: Callable[..., Any], operator: str) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if _depth() and is_in_torch_dispatch_mode(include_infra_modes=False):
            overload = getattr(torch.ops.c10d, operator).default
            return _show(
                overload, lambda: method(self, *arguments, **named), (*arguments, self), {}
            )
        return method(self, *arguments, **named)

    return call


def _show(
    overload: Any, call: Callable[[], Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Pass the operator to the innermost mode; its call passes it to the next, the last calls."""

    def go_on(*arguments: Any, **named: Any) -> Any:
        return _show(overload, call, arguments, named) if _depth() else call()

    operator = object.__new__(type(overload))
    vars(operator).update(vars(overload), _op=go_on)
    with _pop_mode_temporarily() as mode:
        return mode.__torch_dispatch__(operator, (), arguments, named)
