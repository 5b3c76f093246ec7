"""A PyTorch module on the ranks of a communicator."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeAlias

import numpy

from ...errors import ArgumentError
from ...support.arrays import Array
from ...support.checks import agree, check, together
from ...support.optional import require
from ...support.tensors import (
    array_of,
    broadcast,
    in_torchs_stream,
    tensor_of,
    torch,
    torchs_stream,
)
from ..monitor import Meter
from ..options import Options
from ..parallel import ErrorFeedback, Reducer, SendOrder
from .flat_parameters import Flat, forget
from .parameter_uses import ParameterUses
from .sharded_optimizer import sharded

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...communicator import Communicator

#: names of parameters as backward finishes them, numbers of modules as forward calls them
Orders: TypeAlias = tuple[list[str], list[int]]


#: by their id: what a DataParallel trains
_WRAPPED: weakref.WeakValueDictionary[int, torch.nn.Parameter] = weakref.WeakValueDictionary()


def is_wrapped(parameter: torch.nn.Parameter) -> bool:
    """Whether a DataParallel trains it, whose hooks stay as long as the parameter."""
    return _WRAPPED.get(id(parameter)) is parameter


class _OwnHook:
    """A hook of a module that does nothing in its copies, in this process and in files."""

    def __init__(self, call: Callable[..., Any] = lambda *_: None) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)

    def __reduce__(self) -> tuple[type[_OwnHook], tuple[()]]:
        return _OwnHook, ()


class DataParallel(torch.nn.Module):
    """A module on the ranks of a communicator; made by `wrap`.

    After each backward the reductions of its gradients are under way (zero1, zero2:
    `optimizer.step()` waits for them), or done (allreduce: `grad` is the mean, zero where no rank
    used a parameter, and any optimizer of PyTorch will do). Every rank calls backward equally
    often; they may use different parameters, but at least one: a rank without data has the loss
    ``0 * model(features).sum()``, of any features. `optimizer.step()` raises ArgumentError where
    no gradients were sent. The first backward finds out the order of the gradients, and only then
    sends: from it on parameters live in flat buffers.

    Under ZeRO a parameter must stay where the first backward placed it, else the next step raises
    ArgumentError, and the `grad` that it has after backward holds no values, and raises
    ArgumentError where it is computed with. A deep copy of `module` is an ordinary module, and so
    is what `torch.save` and pickle write.

    `module`, `optimizer` (None if none was given), `meter` (a `Meter`: figures of what ran in
    `step()`). Forward, evaluation, copies, and `state_dict` and `load_state_dict` of `module` and
    its parts wait for parameters under way: forward of each module for its own, and for those of
    other modules that it used before the end of the first backward. `parameters()` waits here, not
    in `module`: before a program reads parameters otherwise, or writes to them, it calls
    `settle()`. Buffers are broadcast once.
    Weights may be shared between modules. Not supported: reentrant checkpointing,
    `load_state_dict(assign=True)`, parameters frozen or thawed later. CUDA tensors
    need CuPy; PyTorch's current stream counts.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        comm: Communicator,
        options: Options,
        optimizer: type[torch.optim.Optimizer] | None,
        optimizer_options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.module = module
        self.comm = comm
        self.options = options
        self.optimizer: Any = None
        self._named_and_frozen = dict(module.named_parameters())
        self._named = {
            name: parameter
            for name, parameter in self._named_and_frozen.items()
            if parameter.requires_grad
        }
        self._modules_in_order = list(module.modules())
        self.device = next(iter(self._named.values())).device
        with torchs_stream(self.device):
            for tensor in [*module.parameters(), *module.buffers()]:
                if tensor.numel():
                    broadcast(tensor.data, comm)
            self.meter = Meter(comm, require("cupy") if self.device.type == "cuda" else numpy)
        self.flats: list[Flat] = []
        self._orders: Orders | None = None
        self._places: dict[str, tuple[Reducer, int]] = {}  # reducer and number of each parameter
        #: reducers, and the layer in each
        self._needs: dict[torch.nn.Module, set[tuple[Reducer, int]]] = {}
        #: what `_needs` does not have; None where modules need not wait, or it has everything
        self._uses = ParameterUses(self._named) if options.sharded else None
        self._seen: dict[torch.nn.Module, int] = {}  # modules in forward order
        self._finished: list[str] = []  # parameters in backward order
        #: residuals that were loaded before there were buckets, by the names of the parameters
        self._loaded: dict[str, torch.Tensor] = {}
        #: what autograd calls when the latest backward ends: gone without a call after an exception
        self._backward: weakref.ref[Callable[[], None]] | None = None
        self._sends = True
        self._first = True
        self._reduced = False
        if optimizer is not None and options.sharded:
            self.optimizer = sharded(optimizer, self, optimizer_options)
        elif optimizer is not None:
            self.optimizer = optimizer(module.parameters(), **optimizer_options)
            self.optimizer.register_step_pre_hook(self._before_step)
            self.optimizer.register_step_post_hook(self._after_step)
        self._hook()

    def _hook(self) -> None:
        parameter: Any  # PyTorch does not annotate all of these methods
        for name, parameter in self._named.items():
            # PyTorch adds to a gradient, and cannot to what stands for one on the shards
            parameter.register_hook(lambda _, parameter=parameter: forget(parameter))
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._ready(name))
            _WRAPPED[id(parameter)] = parameter
        self._handles = [
            module.register_forward_pre_hook(_OwnHook(self._need))
            for module in self._modules_in_order
        ]
        if self._uses is not None:
            self._ends = [
                module.register_forward_hook(_OwnHook(self._uses.end), always_call=True)
                for module in self._modules_in_order
            ]
        module: Any
        for module in self._modules_in_order:  # a program may save or copy a part of the module
            module.__deepcopy__ = partial(self._copied, module)
            module.__reduce_ex__ = partial(self._pickled, module)
            module.register_state_dict_pre_hook(_OwnHook(lambda *_: self.settle()))
            module.register_load_state_dict_pre_hook(_OwnHook(lambda *_: self.settle()))

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """That of the module."""
        if self._uses is None or not torch.is_grad_enabled():
            return self.module(*arguments, **named)
        with self._uses:
            return self.module(*arguments, **named)

    # Copies.

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """No copy, in this process or in a file, can take part in the collectives of this one."""
        raise ArgumentError(
            "copy, pickle: expected a module of PyTorch, got a DataParallel, whose ranks and "
            "buffers cannot be copied: copy its .module, which gives an ordinary module"
        )

    @contextmanager
    def _ordinary(self, module: torch.nn.Module) -> Iterator[dict[str, Any]]:
        """The attributes of a module, which is copied as any other with the newest parameters."""
        self.settle()
        own = module.__dict__
        hooks = {name: own.pop(name) for name in ("__deepcopy__", "__reduce_ex__")}
        try:
            yield own
        finally:
            own.update(hooks)

    def _copied(self, module: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
        """copy.deepcopy of the module or a part of it: an ordinary one."""
        with self._ordinary(module):
            return copy.deepcopy(module, memo)

    def _pickled(
        self, module: torch.nn.Module, protocol: SupportsIndex
    ) -> tuple[Any, ...] | str:
        """What pickle, and with it torch.save, writes of the module or a part: an ordinary one."""
        with self._ordinary(module) as own:
            reduced = module.__reduce_ex__(protocol)
            if isinstance(reduced, str):
                return reduced
            return tuple(dict(part) if part is own else part for part in reduced)

    # Parameters.

    @in_torchs_stream
    def settle(self) -> None:
        """Wait for all parameters. Local."""
        for flat in self.flats:
            flat.reducer.wait()

    def named_parameters(
        self, *arguments: Any, **named: Any
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Those of any module, and so `parameters()`, once the newest have come."""
        self.settle()
        return super().named_parameters(*arguments, **named)

    def train(self, mode: bool = True) -> Self:
        """As any module's; for evaluation wait for all parameters."""
        if not mode:
            self.settle()
        return super().train(mode)

    @in_torchs_stream
    def _need(self, module: torch.nn.Module, _: object) -> None:
        """A module is about to compute."""
        if self._uses is not None:
            self._uses.begin(module)
        if not self.flats:
            self._seen.setdefault(module, len(self._seen))
        elif self._uses is not None or not torch.is_grad_enabled():
            # fast paths for inference read the parameters of modules whose hooks they do not call
            self.settle()
        else:
            for reducer, layer in self._needs.get(module, ()):
                reducer.wait_for_layer(layer)

    # Gradients.

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context whose backward passes only add gradients up.

        zero2 adds them on its shards, which needs `accumulate` above 1.
        """
        good = not self.options.scattered or self.options.accumulate > 1
        check(
            "accumulate",
            self.options.accumulate,
            good,
            "at least 2, so that zero2 can add micro-batches up",
        )
        self._sends = False
        try:
            yield
        finally:
            self._sends = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, those on the shards of zero2 too."""
        for flat in self.flats:
            flat.forget()
        self.module.zero_grad(set_to_none)  # whose parameters need not have come
        self._first = True
        self._reduced = False

    def expect_gradients(self) -> None:
        """Raise ArgumentError unless a backward has sent its gradients since the last step."""
        self._check_backward()
        check(
            "step()",
            "none",
            self._reduced,
            "a backward pass outside of no_sync() since the last step, on every rank, to at least "
            "one parameter: a rank without data has the loss 0 * model(features).sum()",
        )
        self._check_parameters()

    def _before_step(
        self, _: object, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        """The optimizer of allreduce is about to step; a closure calls backward itself."""
        if not any(callable(value) for value in (*arguments[1:], *named.values())):
            self.expect_gradients()

    def _after_step(self, *_: object) -> None:
        self._reduced = False

    def _check_parameters(self) -> None:
        """Raise ArgumentError for one that was frozen, thawed or taken out of its buffer."""
        for name, parameter in self._named_and_frozen.items():
            if parameter.requires_grad != (name in self._named):
                raise ArgumentError(
                    f"parameter {name}: expected requires_grad as it was for wrap(), got "
                    f"{parameter.requires_grad}: to freeze or thaw parameters, change a copy, "
                    "copy.deepcopy(model.module), and wrap that"
                )
        for flat in self.flats:
            flat.check_places()

    def _check_backward(self) -> None:
        """Raise ArgumentError after a backward without an end."""
        if self._backward is not None and self._backward() is None:
            raise ArgumentError(
                "backward(): expected the one before to have ended on rank "
                f"{self.comm.Get_rank()}, got an exception in it: other ranks wait for its "
                "gradients. Save module.state_dict(), and continue from it in a new job"
            )

    @in_torchs_stream
    def _ready(self, name: str) -> None:
        """The gradient of a parameter is there."""
        if self._backward is None:
            self._begin()
        self._check_backward()
        if self.flats:
            reducer, number = self._places[name]
            reducer.ready(number)
        else:
            self._finished.append(name)

    def _begin(self) -> None:
        adds = not self.options.sharded or (self.options.scattered and self.options.accumulate > 1)
        check(
            "backward()",
            "another",
            adds or not self._reduced,
            "step() after a backward whose gradients were sent; to add micro-batches up, use "
            "no_sync() for all but the last (zero2: accumulate above 1)",
        )
        self._check_parameters()
        for flat in self.flats:
            flat.reducer.begin(self._first, self._sends)
        end = self._end
        self._backward = weakref.ref(end)
        torch.autograd.Variable._execution_engine.queue_callback(end)

    @in_torchs_stream
    def _end(self) -> None:
        """Backward is done."""
        if not self.flats:
            self._arrange(self._observed())
            for flat in self.flats:
                flat.reducer.begin(self._first, self._sends)
        if self._uses is not None and self._uses.names:
            self._need_from_now_on(self._uses.names)
            self._uses = None
            for handle in self._ends:
                handle.remove()
        for flat in self.flats:
            flat.reducer.end()
        if not self._sends:
            for flat in self.flats:
                flat.keep()
        if self._sends and not self.options.sharded:
            for flat in self.flats:
                flat.reducer.collect()
            self.commit()
        self._backward = None
        self._first = False
        self._reduced = self._sends

    def _feedbacks(self) -> list[ErrorFeedback]:
        """Of each flat buffer, where there is error feedback."""
        feedbacks = (flat.reducer.feedback for flat in self.flats)
        return [feedback for feedback in feedbacks if feedback is not None]

    def commit(self) -> None:
        """Gradients have come: what their codes lost is added to the next ones."""
        for feedback in self._feedbacks():
            feedback.commit()

    def residuals(self) -> list[torch.Tensor]:
        """What codes have lost on this rank, of each flat buffer, in plain order."""
        return [tensor_of(feedback.plain()) for feedback in self._feedbacks()]

    def feedback_state_dict(self) -> dict[str, torch.Tensor]:
        """What codes have lost of the gradients on this rank. Local.

        With zero1 and zero2 the optimizer's `state_dict` has it, too.

        Returns
        -------
        dict
            {name of a parameter: float32 tensor of its shape}; copies. Every rank has its own, for
            a file of its own. Empty before the first backward, and without error feedback.
        """
        if not self.flats:
            return dict(self._loaded)
        return {name: tensor_of(view).clone() for name, view in self._lost()}

    def load_feedback_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Go on with what `feedback_state_dict` gave, of this rank or another one. Local.

        What is loaded on some rank is added to its next gradients: where there are fewer ranks, add
        up the tensors of several. It is not used where nothing is sent in codes.

        Raises
        ------
        ArgumentError
            The module has no such parameters.
        """
        for name, values in state_dict.items():
            shape = tuple(self._named[name].shape) if name in self._named else None
            expected = "no parameter of that name" if shape is None else f"shape {shape}"
            good = tuple(values.shape) == shape
            check(f"residuals of {name}", tuple(values.shape), good, expected)
        self._loaded = {name: values.clone() for name, values in state_dict.items()}
        if self.flats:
            self._use_loaded()

    @in_torchs_stream
    def _use_loaded(self) -> None:
        """Take over the residuals that were loaded."""
        if not self._loaded:
            return
        for feedback in self._feedbacks():
            feedback.clear()
        for name, view in self._lost():
            if name in self._loaded:
                tensor_of(view).copy_(self._loaded[name])
        self._loaded = {}

    def _lost(self) -> list[tuple[str, Array]]:
        """What codes have lost of each parameter's gradient; views."""
        return [item for feedback in self._feedbacks() for item in feedback.named().items()]

    def masters(self) -> list[torch.Tensor]:
        """What this rank has uncompressed of parameters that are sent in codes; copies."""
        return [master.clone() for master in self._masters]

    @property
    def _masters(self) -> list[torch.Tensor]:
        return [master for flat in self.flats for master in flat.masters]

    # The order of things.

    def _observed(self) -> Orders:
        """Parameters in backward order (unused ones last) and modules in forward order, of rank 0.

        Collective.
        """
        unused = [name for name in reversed(self._named) if name not in self._finished]
        forward = [self._modules_in_order.index(module) for module in self._seen]
        orders: Orders = self.comm.bcast(([*self._finished, *unused], forward))
        return orders

    def _arrange(self, orders: Orders) -> None:
        """Move the parameters into flat buffers. Collective."""
        self._orders, (backward, forward) = orders, orders
        owners = {self._modules_in_order[number]: layer for layer, number in enumerate(forward)}
        needs = self._owned_by(owners)
        layers: dict[str, int] = {}
        for module, layer in owners.items():
            for name in needs.get(module, ()):
                layers.setdefault(name, layer)
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._named.values()):
            named = {
                name: parameter
                for name, parameter in self._named.items()
                if parameter.dtype == dtype
            }
            order = [list(named).index(name) for name in backward if name in named]
            flat = Flat(
                named,
                [layers.get(name, 0) for name in named],
                order,
                self.comm,
                self.options,
                self.meter,
            )
            self.flats.append(flat)
            self._places.update((name, (flat.reducer, number)) for number, name in enumerate(named))
        self._send_in_order(backward)
        self._use_loaded()
        if self.options.sharded:
            self._need_from_now_on(needs)
            self.optimizer.place([piece for flat in self.flats for piece in flat.pieces])
        else:
            for handle in self._handles:
                handle.remove()

    def _send_in_order(self, backward: Sequence[str]) -> None:
        """Let the buckets of all dtypes leave as backward completes them, in this order."""
        turn_after = {
            flat.names[number]: flat.reducer
            for flat in self.flats
            for number in flat.reducer.last_tensors
        }
        order = SendOrder([turn_after[name] for name in backward if name in turn_after])
        for flat in self.flats:
            flat.reducer.send_order = order

    def _need_from_now_on(self, names: Mapping[torch.nn.Module, Iterable[str]]) -> None:
        """Before they compute, modules wait for these parameters, too."""
        for module, needed in names.items():
            layers = self._needs.setdefault(module, set())
            for name in needed:
                reducer, number = self._places[name]
                layers.add((reducer, reducer.layout.tensors[number].layer))

    def _owned_by(
        self, called: Mapping[torch.nn.Module, int]
    ) -> dict[torch.nn.Module, dict[str, None]]:
        """Names of the parameters that each module needs.

        Its own, and those of modules inside that are used but not `called`.
        """
        names = {parameter: name for name, parameter in self._named.items()}
        needs: dict[torch.nn.Module, dict[str, None]] = {}

        def visit(module: torch.nn.Module, caller: torch.nn.Module) -> None:
            caller = module if module in called else caller
            for parameter in module.parameters(recurse=False):
                if parameter in names:
                    for user in (caller, module):
                        needs.setdefault(user, {})[names[parameter]] = None
            for child in module.children():
                visit(child, caller)

        visit(self.module, self.module)
        return needs

    def cut(self) -> dict[str, Any]:
        """What decides which part of the parameters is this rank's."""
        return {
            "rank": self.comm.Get_rank(),
            "ranks": self.comm.Get_size(),
            "bytes": list(self.options.bucket_limits),
            "compressed": self.options.compresses,
            "parameters": {
                name: f"{tuple(parameter.shape)} {parameter.dtype}"
                for name, parameter in self._named.items()
            },
            "orders": self._orders,
        }

    @in_torchs_stream
    def adopt(
        self,
        cut: Mapping[str, Any],
        residuals: Sequence[torch.Tensor] = (),
        masters: Sequence[torch.Tensor] = (),
    ) -> None:
        """Cut the parameters as they were for a `cut`; take over `residuals` and `masters` of then.

        Collective. Raises ArgumentError on every rank, and changes nothing, where that cannot be.
        """
        together(self.comm, lambda: self._check_state(cut, residuals, masters))
        agree(self.comm, {"the orders of the optimizer state": cut["orders"]})
        if not self.flats and cut["orders"] is not None:
            self._arrange(cut["orders"])
        for feedback, values in zip(self._feedbacks(), residuals):
            feedback.clear()
            feedback.add(array_of(values))
        for master, values in zip(self._masters, masters):
            master.copy_(values)

    def _check_state(
        self,
        cut: Mapping[str, Any],
        residuals: Sequence[torch.Tensor],
        masters: Sequence[torch.Tensor],
    ) -> None:
        """Raise ArgumentError unless `adopt` can take over all of it."""
        own = self.cut()
        orders = cut["orders"]
        parameters = own.pop("parameters")
        # states of earlier versions have no more of the parameters than their names
        names = parameters if orders is None else orders[0]
        saved = cut.get("parameters", {name: parameters.get(name, "another") for name in names})
        for name in dict.fromkeys([*parameters, *saved]):
            expected = parameters.get(name, "no such parameter")
            value = saved.get(name, "no such parameter")
            check(f"optimizer state: {name}", value, value == expected, expected)
        if orders is not None:
            good = sorted(orders[0]) == sorted(parameters) and all(
                number < len(self._modules_in_order) for number in orders[1]
            )
            check("optimizer state: orders", orders, good, "each parameter of this module once")
        if not self.flats:
            own["orders"] = orders
        for name in own:
            value = cut.get(name, own[name])
            expected = f"{own[name]}, as in this run"
            check(f"optimizer state: {name}", value, value == own[name], expected)
        for name, values, is_used, option in (
            ("residuals", residuals, self.options.error_feedback, "error_feedback"),
            ("masters", masters, self.options.parameter_compression, "parameter_compression"),
        ):
            check(
                f"optimizer state: {name}",
                f"those of {len(values)} buffers",
                is_used or not values,
                f"none, as this run has no {option}: wrap() as the run that was saved did, or "
                f"load {{**state, {name!r}: []}} to drop them",
            )

    # Figures.

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the state of `optimizer` on this rank, if there is one, and of masters."""
        states = () if self.optimizer is None else self.optimizer.state.values()
        tensors = [
            value for state in states for value in state.values() if torch.is_tensor(value)
        ]
        return sum(tensor.nbytes for tensor in [*tensors, *self._masters])

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradient buffers on this rank, once the first backward has made them."""
        return sum(flat.reducer.gradients.nbytes for flat in self.flats)

    @property
    def residual_bytes(self) -> int:
        """Bytes of error feedback on this rank, once the first backward has made them."""
        return sum(flat.reducer.residual_bytes for flat in self.flats)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step, whose costs go to `meter`; all but waiting counts as computing."""
        with torchs_stream(self.device), self.meter.step(), self.meter.computing("step"):
            yield
