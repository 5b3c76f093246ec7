"""A process group that serves some devices itself, and leaves others to other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..communicator import Communicator
from ..errors import ArgumentError
from .modes import OPERATORS
from .process_group import ProcessGroup

_dist: Any = torch.distributed
_Group: Any = _dist.ProcessGroup
#: methods that get tensors
_METHODS = (*(name for name in OPERATORS if name != "barrier"), "recv_anysource")


class Mixed(ProcessGroup):
    """others: {device: backend}, such as {"cuda": "nccl"}."""

    def __init__(self, comm: Communicator, options: Any, others: Mapping[str, str]) -> None:
        super().__init__(comm, options)
        self._others = frozenset(others)
        #: PyTorch's own group of the other backends. Called for this group, PyTorch's methods would
        #: come back here: they are virtual
        self._elsewhere = _Group(options.group_rank, options.group_size)
        for device, name in others.items():
            store = _dist.PrefixStore(f"{device}/", options.store)
            backend, kind = _backend(name, options, store)
            for group in (self, self._elsewhere):
                group._register_backend(torch.device(device), kind, backend)

    def _get_backend(self, device: torch.device) -> Any:
        return self._elsewhere._get_backend(device) if device.type in self._others else self


def _backend(name: str, options: Any, store: Any) -> tuple[Any, Any]:
    """A backend of PyTorch's own, and its kind."""
    kind = _Group.BackendType
    rank = options.group_rank
    size = options.group_size
    if name == "gloo":
        return _dist.ProcessGroupGloo(store, rank, size, options.timeout), kind.GLOO
    if name == "nccl" and _dist.is_nccl_available():
        nccl_options = _dist.ProcessGroupNCCL.Options()
        nccl_options._timeout = options.timeout
        return _dist.ProcessGroupNCCL(store, rank, size, nccl_options), kind.NCCL
    raise ArgumentError(
        "beside mpicoll a process group may have nccl or gloo, where PyTorch was built with it, "
        f"not {name}"
    )


def _by_device(name: str) -> Callable[..., Any]:
    """A method that leaves tensors of other devices to PyTorch's method."""
    own = getattr(ProcessGroup, name)

    def call(self: Mixed, *arguments: Any, **named: Any) -> Any:
        if _device((*arguments, *named.values())) in self._others:
            return getattr(self._elsewhere, name)(*arguments, **named)
        return own(self, *arguments, **named)

    return call


def _device(values: Iterable[Any]) -> str | None:
    """The device of the first tensor."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return str(value.device.type)
        if isinstance(value, (list, tuple)) and (device := _device(value)) is not None:
            return device
    return None


for _name in _METHODS:
    setattr(Mixed, _name, _by_device(_name))
