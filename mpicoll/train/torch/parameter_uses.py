"""Which modules compute with which parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from ...support.tensors import torch


class ParameterUses(TorchFunctionMode):
    """Notes the parameters that modules compute with while this context is entered.

    A module may use those of a module that it calls later, or never. `names`: of each module, the
    parameters that it used while it was the innermost one.
    """

    def __init__(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        super().__init__()
        self.names: defaultdict[torch.nn.Module, set[str]] = defaultdict(set)
        self._name_of = {parameter: name for name, parameter in named.items()}
        self._running: list[torch.nn.Module] = []

    def begin(self, module: torch.nn.Module) -> None:
        """The module begins to compute."""
        self._running.append(module)

    def end(self, module: torch.nn.Module, *_: object) -> None:
        """The module has computed, or raised."""
        if self._running and self._running[-1] is module:
            self._running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._running:
            names = self.names[self._running[-1]]
            for tensor in _tensors((args, kwargs)):
                if tensor in self._name_of:
                    names.add(self._name_of[tensor])
        return func(*args, **kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in nested arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
