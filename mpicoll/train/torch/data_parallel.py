"""Data-parallel training of PyTorch modules.

    model = wrap(module, comm, "zero2", optimizer=torch.optim.AdamW, lr=1e-3)
    for features, labels in batches_of_this_rank:
        model.optimizer.zero_grad()
        loss_function(model(features), labels).backward()
        model.optimizer.step()
"""

from contextlib import contextmanager

import numpy

from ...communicator import Communicator
from ...support.checks import agree, check
from ...support.optional import require
from ..monitor import Meter
from ..parallel import Options
from .flat_parameters import Flat
from .interop import broadcast, torch
from .sharded_optimizer import sharded, state_bytes


def wrap(module, comm, strategy="allreduce", *, optimizer=None, overlap="all", bucket_bytes=4 << 20,
         parameter_bucket_bytes=None, reduction=None, accumulate=1, clip_norm=None, algorithm="ring",
         **optimizer_options):  # fmt: skip
    """A `DataParallel` of the module: every rank computes on its rows, and all have the same parameters after each step.

    module: built alike on every rank, its parameters dense and on one device; rank 0's parameters and buffers are broadcast.
    comm: a Communicator, or an MPI.Intracomm, which is wrapped. strategy: allreduce, zero1 or zero2. optimizer: a class of
    torch.optim, made with `optimizer_options`; for zero1 and zero2 on this rank's shard, for which its update must be
    element by element, and all parameters have the same options. accumulate: above 1 lets zero2 add micro-batches up;
    clip_norm: of all gradients, with zero1 and zero2. The others: see `Options`.

    Gradients are means over the ranks: with a loss that is a mean over local rows, give all ranks as many rows. Costs as
    `Buckets` says. Collective. Raises ArgumentError on every rank where a value cannot be used or ranks differ.
    """
    comm = comm if isinstance(comm, Communicator) else Communicator(comm)
    options = Options(strategy, overlap, bucket_bytes, parameter_bucket_bytes, reduction, accumulate, clip_norm,
                      algorithm=algorithm)  # fmt: skip
    named = [*module.named_parameters(), *module.named_buffers()]
    facts = {f"tensor {number} of the module": f"{name} {tuple(one.shape)} {one.dtype} {one.requires_grad}"
             for number, (name, one) in enumerate(named)}  # fmt: skip
    made = f"{getattr(optimizer, '__name__', optimizer)}({optimizer_options})"
    agree(comm, {**facts, "number of tensors": len(named), "the optimizer": made, **options.facts()})
    _check(module, options, optimizer, optimizer_options)
    return DataParallel(module, comm, options, optimizer, optimizer_options)


def _check(module, options, optimizer, optimizer_options):
    """Raise ArgumentError for what is alike on all ranks, and wrong."""
    check("strategy", options.strategy, options.strategy != "parameter_server", "allreduce, zero1 or zero2")
    options.check()
    trained = [one for one in module.parameters() if one.requires_grad]
    places = sorted({str(one.device) for one in trained})
    check("module", places, len(places) == 1, "parameters that require gradients, all on one device")
    dtypes = {one.dtype for one in trained}
    check("module", dtypes, all(one.is_floating_point for one in dtypes), "parameters of floating types")
    if options.sharded:
        check("optimizer", optimizer, optimizer is not None, f"a class of torch.optim, which {options.strategy} shards")
    else:
        norm = options.clip_norm
        check("clip_norm", norm, norm is None, "None with allreduce; call torch.nn.utils.clip_grad_norm_ before step()")
        unused = optimizer_options if optimizer is None else None
        check("options", unused, not unused, "an optimizer that takes them, or none")


class DataParallel(torch.nn.Module):
    """A module on the ranks of a communicator; made by `wrap`.

    After each backward the reductions of its gradients are under way (zero1, zero2: `optimizer.step()` waits for them; the
    parameters have no `grad` then), or done (allreduce: `grad` is the mean, zero where no rank used a parameter, and any
    optimizer of PyTorch will do). Every rank calls backward equally often; they may use different parameters. The first
    backward finds out the order of the gradients, and only then sends: from it on parameters live in flat buffers.

    `module`, `optimizer` (None if none was given), `meter` (a `Meter`: figures of what ran in `step()`). Forward, evaluation
    and `state_dict` wait for parameters under way; before reading tensors of the module yourself, call `settle()`. Buffers
    are broadcast once. Weights may be shared between modules. Not supported: reentrant checkpointing,
    `load_state_dict(assign=True)`, parameters frozen or thawed later. CUDA tensors need CuPy and PyTorch's default stream.
    """

    def __init__(self, module, comm, options, optimizer, optimizer_options):
        super().__init__()
        self.module, self.comm, self.options, self.optimizer = module, comm, options, None
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.numel():
                broadcast(tensor.data, comm)
        self._named = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._modules_in_order = list(module.modules())
        cuda = next(iter(self._named.values())).is_cuda
        self.meter = Meter(comm, require("cupy") if cuda else numpy)
        self.flats, self._orders, self._places, self._needs = [], None, {}, {}
        self._seen, self._finished = {}, []  # modules in forward order, parameters in backward order
        self._running, self._sends, self._first, self._reduced = False, True, True, False
        if optimizer is not None:
            make = sharded if options.sharded else lambda kind, model, given: kind(module.parameters(), **given)
            self.optimizer = make(optimizer, self, optimizer_options)
        self._hook()

    def _hook(self):
        for name, parameter in self._named.items():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._ready(name))
        self._handles = [one.register_forward_pre_hook(self._need) for one in self._modules_in_order]
        self.module.register_state_dict_pre_hook(lambda *_: self.settle())
        self.module.register_load_state_dict_pre_hook(lambda *_: self.settle())

    def forward(self, *arguments, **named):
        """That of the module."""
        return self.module(*arguments, **named)

    # Parameters.

    def settle(self):
        """Wait for all parameters. Local."""
        for flat in self.flats:
            flat.exchange.settle()

    def train(self, mode=True):
        """As any module's; for evaluation wait for all parameters."""
        if not mode:
            self.settle()
        return super().train(mode)

    def _need(self, module, _):
        """A module is about to compute."""
        if not self.flats:
            self._seen.setdefault(module, len(self._seen))
        elif not torch.is_grad_enabled():
            self.settle()  # fast paths for inference read the parameters of modules whose hooks they do not call
        else:
            for exchange, layer in self._needs.get(module, ()):
                exchange.need(layer)

    # Gradients.

    @contextmanager
    def no_sync(self):
        """Gradients of backward passes inside are only added up: by zero2 on its shards, which needs `accumulate` above 1."""
        good = not self.options.scattered or self.options.accumulate > 1
        check("accumulate", self.options.accumulate, good, "at least 2, so that zero2 can add micro-batches up")
        self._sends = False
        try:
            yield
        finally:
            self._sends = True

    def zero_grad(self, set_to_none=True):
        """Drop the gradients, those on the shards of zero2 too."""
        super().zero_grad(set_to_none)
        self._first, self._reduced = True, False

    def expect_gradients(self):
        """Raise ArgumentError unless a backward has sent its gradients since the last step."""
        check("step()", "none", self._reduced, "a backward pass outside of no_sync() since the last step, on every rank")

    def _ready(self, name):
        """The gradient of a parameter is there."""
        if not self._running:
            self._begin()
        if self.flats:
            exchange, number = self._places[name]
            exchange.ready(number)
        else:
            self._finished.append(name)

    def _begin(self):
        adds = not self.options.sharded or (self.options.scattered and self.options.accumulate > 1)
        check("backward()", "another", adds or not self._reduced, "step() after a backward whose gradients were sent; "
              "to add micro-batches up, use no_sync() for all but the last (zero2: accumulate above 1)")  # fmt: skip
        self._running = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        for flat in self.flats:
            flat.exchange.begin(self._first, self._sends)

    def _end(self):
        """Backward is done."""
        if not self.flats:
            self._arrange(self._observed())
            for flat in self.flats:
                flat.exchange.begin(self._first, self._sends)
        for flat in self.flats:
            flat.exchange.end()
            if not (self._sends or self.options.scattered):
                flat.keep()
        if self._sends and not self.options.sharded:
            for flat in self.flats:
                for _ in flat.reduced():  # waits
                    pass
        self._running, self._first, self._reduced = False, False, self._sends

    # The order of things.

    def _observed(self):
        """What rank 0 saw: parameters in backward order (unused ones last), modules in forward order. Collective."""
        unused = [name for name in reversed(self._named) if name not in self._finished]
        return self.comm.bcast(([*self._finished, *unused], [self._modules_in_order.index(one) for one in self._seen]))

    def _arrange(self, orders):
        """Move the parameters into flat buffers. Collective."""
        self._orders, (backward, forward) = orders, orders
        owners = {self._modules_in_order[number]: layer for layer, number in enumerate(forward)}
        needs = self._owned_by(owners)
        layers = {}
        for module, layer in owners.items():
            for name in needs.get(module, ()):
                layers.setdefault(name, layer)
        for dtype in dict.fromkeys(one.dtype for one in self._named.values()):
            named = {name: one for name, one in self._named.items() if one.dtype == dtype}
            order = [list(named).index(name) for name in backward if name in named]
            flat = Flat(named, [layers.get(name, 0) for name in named], order, self.comm, self.options, self.meter)
            self.flats.append(flat)
            self._places.update((name, (flat.exchange, number)) for number, name in enumerate(named))
        if self.options.sharded:
            self._needs = {module: {(self._places[name][0], layers.get(name, 0)) for name in names}
                           for module, names in needs.items()}  # fmt: skip
            self.optimizer.place([piece for flat in self.flats for piece in flat.pieces])
        else:
            for handle in self._handles:
                handle.remove()

    def _owned_by(self, called):
        """{module: names of the parameters it needs}: its own, and those of modules inside that are used but not `called`."""
        names, needs = {one: name for name, one in self._named.items()}, {}

        def visit(module, caller):
            caller = module if module in called else caller
            for parameter in module.parameters(recurse=False):
                if parameter in names:
                    for one in (caller, module):
                        needs.setdefault(one, {})[names[parameter]] = None
            for child in module.children():
                visit(child, caller)

        visit(self.module, self.module)
        return needs

    def cut(self):
        """What decides which part of the parameters is this rank's."""
        return {"rank": self.comm.Get_rank(), "ranks": self.comm.Get_size(), "bytes": list(self.options.bucket_limits),
                "orders": self._orders}  # fmt: skip

    def adopt(self, cut):
        """Cut the parameters as they were for a `cut`. Collective. Raises ArgumentError where that cannot be."""
        if not self.flats and cut["orders"] is not None:
            self._arrange(cut["orders"])
        mine = self.cut()
        for name in mine:
            check(f"optimizer state: {name}", cut[name], cut[name] == mine[name], f"{mine[name]}, as in this run")

    # Figures.

    @property
    def optimizer_bytes(self):
        """Bytes of the state of `optimizer` on this rank, if there is one."""
        return 0 if self.optimizer is None else state_bytes(self.optimizer)

    @property
    def gradient_bytes(self):
        """Bytes of all gradient buffers on this rank, once the first backward has made them."""
        return sum(flat.exchange.gradient_bytes for flat in self.flats)

    @contextmanager
    def step(self):
        """Around a step: what it costs goes to `meter`; what is not waiting for communication counts as computing."""
        with self.meter.step(), self.meter.computing("step"):
            yield
