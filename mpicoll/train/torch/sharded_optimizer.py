"""Any element-wise optimizer of PyTorch on this rank's shard of the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError
from ...support.checks import check
from ...support.tensors import in_torchs_stream, tensor_of, torch
from ..optim import clip_factor
from ..parallel import squared_norm_of

#: optimizers that look at whole matrices or at all parameters together
_WHOLE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")


def sharded(kind: type[torch.optim.Optimizer], model: Any, options: Mapping[str, Any]) -> Any:
    """An optimizer like `kind` that updates what this rank owns of a DataParallel `model`.

    Raises ArgumentError for a class whose update is not element by element.
    """
    good = (
        isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and kind.__name__ not in _WHOLE
    )
    check(
        "optimizer",
        kind,
        good,
        f"a class of torch.optim that updates each element alone, not {', '.join(_WHOLE)}",
    )
    step: Any = kind.step
    if getattr(step, "hooked", False):  # Optimizer adds the calls of step hooks to each class
        step = step.__wrapped__
    made = type(f"Sharded{kind.__name__}", (Sharded, kind), {"unhooked_step": step})
    # what this rank owns is known after the first backward; schedulers want an optimizer before
    optimizer = made([torch.nn.Parameter(torch.empty(0, device="cpu"))], **options)
    optimizer.model = model
    optimizer.make = lambda pieces: kind(pieces, **options)
    return optimizer


class _Once:
    """Entries of dictionaries that a step of several parts changes once.

    An optimizer class may count its steps in its group or in itself; of each step it makes here
    one for every bucket. `again` undoes what those before have changed.
    """

    def __init__(self, *holders: dict[str, Any]) -> None:
        self._holders = [
            (entries, dict(entries), {name: _copy_of(value) for name, value in entries.items()})
            for entries in holders
        ]

    @torch.no_grad()
    def again(self) -> None:
        """The next part begins with the entries of the first one."""
        for entries, before, copies in self._holders:
            for name in entries.keys() - before.keys():
                del entries[name]
            entries.update(before)
            for name, copy in copies.items():
                if copy is not None:  # a tensor, which a step changes in place
                    before[name].copy_(copy)


def _copy_of(value: Any) -> torch.Tensor | None:
    return value.detach().clone() if torch.is_tensor(value) else None


class Sharded:
    """Mixed into an optimizer class: steps bucket by bucket, as reduced gradients come."""

    model: Any  # the DataParallel whose step it makes
    make: Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]
    unhooked_step: Callable[[], object]  # that of the optimizer class
    param_groups: list[dict[str, Any]]
    state: Any

    def place(self, pieces: Sequence[torch.nn.Parameter]) -> None:
        """Update these parameters from now on."""
        self.param_groups[0]["params"] = pieces
        self.state = self.make(pieces).state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the parameters are those of the module, which all have the same options."""
        check(
            "add_param_group",
            sorted(param_group),
            not self.param_groups,  # PyTorch adds the first one
            "one group, of the parameters that the module had for wrap(); to train others, too, "
            "wrap a copy.deepcopy(model.module) that has them",
        )
        super().add_param_group(param_group)  # type: ignore[misc]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Where torch.amp.GradScaler asks how to step, before it looks for gradients.

        Raises ArgumentError: it would find none of those on the shards, and no overflow.
        """
        raise ArgumentError(
            "GradScaler: expected strategy allreduce, or bfloat16, which needs no loss scale, got "
            "an optimizer of shards: wrap(…, 'allreduce'), or GradScaler(enabled=False)"
        )

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        """Fused optimizers set it."""

    @property
    def device(self) -> torch.device:
        """That of the model."""
        device: torch.device = self.model.device
        return device

    @in_torchs_stream
    def step(self, closure: None = None) -> None:
        """Update this rank's shards, and begin to bring the new parameters to all ranks.

        Collective.
        """
        check("closure", closure, closure is None, "None; compute the loss before step()")
        model = self.model
        model.expect_gradients()
        factor = self._clip_factor()
        once = _Once(vars(self), self.param_groups[0])
        for flat in model.flats:
            for bucket, gradients in flat.reducer.updating():
                with model.meter.computing(f"update {bucket.number}"):
                    piece = flat.piece(bucket)
                    gradient = tensor_of(gradients)
                    piece.grad = gradient if factor == 1 else gradient.mul_(factor)
                    once.again()
                    self.unhooked_step()
                    piece.grad = None
        model.commit()
        for flat in model.flats:
            flat.publish()
        model.zero_grad()

    def _clip_factor(self) -> float:
        """What brings the norm of all gradients, of all ranks, down to `clip_norm`."""
        limit = self.model.options.clip_norm
        if limit is None:
            return 1
        squares = sum(squared_norm_of(flat.reducer) for flat in self.model.flats)
        return clip_factor(math.sqrt(squares), limit)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        self.model.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state, to be loaded on the same rank of as many ranks."""
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return {
            **state,
            "cut": self.model.cut(),
            "residuals": self.model.residuals(),
            "masters": self.model.masters(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave on this rank, and the order of the buckets. Collective.

        Raises ArgumentError on every rank where it was cut for other parameters, another rank,
        number of ranks or bucket size, where it has residuals or masters that this model has no
        use for, or after the first backward of a model whose buckets have another order.
        """
        state = dict(state_dict)
        self.model.adopt(state.pop("cut"), state.pop("residuals", ()), state.pop("masters", ()))
        super().load_state_dict(state)  # type: ignore[misc]
