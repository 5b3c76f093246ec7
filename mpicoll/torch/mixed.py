"""A process group that serves tensors of some devices itself, and leaves others to other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..communicator import Communicator
from ..errors import ArgumentError
from .process_group import ProcessGroup

_dist: Any = torch.distributed
_Group: Any = _dist.ProcessGroup
_METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "all_gather_single",
    "all_gather_single_coalesced", "_allgather_base", "allgather_into_tensor_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "all_to_all_single", "alltoall_base", "send", "recv", "recv_anysource",
)  # fmt: skip


class Mixed(ProcessGroup):
    """others: {device: backend}, "cuda": "nccl" say."""

    def __init__(self, comm: Communicator, options: Any, others: Mapping[str, str]) -> None:
        super().__init__(comm, options)
        self._others = frozenset(others)
        for device, name in others.items():
            backend, kind = _backend(name, options, _dist.PrefixStore(f"{device}/", options.store))
            self._register_backend(torch.device(device), kind, backend)

    def _get_backend(self, device: torch.device) -> Any:
        return _Group._get_backend(self, device) if device.type in self._others else self


def _backend(name: str, options: Any, store: Any) -> tuple[Any, Any]:
    """A backend of PyTorch's own, and its kind."""
    kind = _Group.BackendType
    if name == "gloo":
        return _dist.ProcessGroupGloo(store, options.group_rank, options.group_size, options.timeout), kind.GLOO
    if name == "nccl" and _dist.is_nccl_available():
        made = _dist.ProcessGroupNCCL.Options()
        made._timeout = options.timeout
        return _dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, made), kind.NCCL
    raise ArgumentError(f"beside mpicoll a process group may have nccl or gloo, where PyTorch was built with it, not {name}")


def _by_device(name: str) -> Callable[..., Any]:
    ours, theirs = getattr(ProcessGroup, name), getattr(_Group, name, None)

    def call(self: Mixed, *given: Any, **named: Any) -> Any:
        serve = theirs if theirs and _device(given) in self._others else ours
        return serve(self, *given, **named)

    return call


def _device(given: Iterable[Any]) -> str | None:
    """That of the first tensor."""
    for one in given:
        if isinstance(one, torch.Tensor):
            return str(one.device.type)
        if isinstance(one, (list, tuple)) and (found := _device(one)) is not None:
            return found
    return None


for _name in _METHODS:
    setattr(Mixed, _name, _by_device(_name))
