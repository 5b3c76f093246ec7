"""PyTorch modules on any number of ranks: the losses and the memory of theory, and parameters under way."""

import io
import sys
from copy import deepcopy

import numpy
import pytest

from mpicoll.errors import ArgumentError
from mpicoll.train.parallel.reducer import StaleParameters
from tests.support.cases import RANK, SIZE
from tests.support.torch_training import (
    SHARDING,
    STEPS,
    STRATEGIES,
    alone,
    batches,
    loss_of,
    mine,
    network,
    same,
    torch,
    train,
    wrap,
)

pytestmark = [pytest.mark.mpi, pytest.mark.thorough, pytest.mark.interpreters("auto")]


# ---- the result of one process


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("overlap", ["none", "gradients", "all"])
@pytest.mark.parametrize("bucket_bytes", [1, 200, 4 << 20])
def test_losses_are_those_of_one_process(comm, strategy, overlap, bucket_bytes):
    options = {"overlap": overlap, "bucket_bytes": bucket_bytes, "lr": 0.01}
    model = wrap(network(RANK), comm, strategy, optimizer=torch.optim.AdamW, **options)
    same(model, train(model, model.optimizer), alone(torch.optim.AdamW, lr=0.01))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulation(comm, strategy, accumulate):
    options = {"lr": 0.05, "momentum": 0.9}
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=200, accumulate=accumulate, **options)
    same(model, train(model, model.optimizer, accumulate), alone(torch.optim.SGD, **options))


def test_accumulation_sends_once(comm):
    sent = []
    for accumulate in (1, 3):
        model = wrap(network(), comm, "zero1", optimizer=torch.optim.SGD, bucket_bytes=200)
        train(model, model.optimizer, accumulate)
        model.settle()  # or the last allgathers would count later
        before = comm.sent[1]
        train(model, model.optimizer, accumulate)
        model.settle()
        sent.append(comm.sent[1] - before)
    assert sent[0] == sent[1] and (sent[0] > 0) == (SIZE > 1)


@pytest.mark.parametrize("strategy", SHARDING)
@pytest.mark.parametrize("options", [
    {"reduction": "allreduce"}, {"parameter_bucket_bytes": 500}, {"algorithm": "circulant"}, {"algorithm": "native"},
])  # fmt: skip
def test_options(comm, strategy, options):
    model = wrap(network(), comm, strategy, optimizer=torch.optim.Adagrad, bucket_bytes=200, **options)
    same(model, train(model, model.optimizer), alone(torch.optim.Adagrad))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_any_optimizer_with_allreduce(comm, set_to_none):
    model = wrap(network(RANK), comm, bucket_bytes=200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # before the parameters move into their buffers
    drop = optimizer.zero_grad
    optimizer.zero_grad = lambda: drop(set_to_none)
    same(model, train(model, optimizer), alone(torch.optim.SGD, lr=0.1))


def test_gradients_of_allreduce_are_means_and_add_up(comm):
    model, single = wrap(network(), comm, bucket_bytes=200), network()
    for features, labels in batches(steps=3):  # no zero_grad in between
        loss_of(model, mine(features), mine(labels)).backward()
        loss_of(single, features, labels).backward()
        for ours, theirs in zip(model.parameters(), single.parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("strategy", SHARDING)
def test_schedulers(comm, strategy):
    def halving(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    expected = alone(torch.optim.Adam, halving, lr=0.02)
    model = wrap(network(), comm, strategy, optimizer=torch.optim.Adam, bucket_bytes=200, lr=0.02)
    schedule = halving(model.optimizer)  # before the optimizer knows what it updates
    same(model, train(model, model.optimizer, schedule=schedule), expected)
    assert schedule.get_last_lr() == [0.02 / 8]


@pytest.mark.parametrize("strategy", SHARDING)
def test_step_hooks_run_once_a_step(comm, strategy):
    model, calls = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=1, lr=0.1), []
    model.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    model.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, model.optimizer)
    assert calls == STEPS * ["before", "after"]


class Counting(torch.optim.Optimizer):
    """Counts its steps in its group, in a tensor there, and in itself."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "total": torch.zeros(())})
        self.count = 0

    @torch.no_grad()
    def step(self):
        group, = self.param_groups
        group["step"] = group.get("step", 0) + 1
        group["total"] += 1
        self.count += 1
        for parameter in group["params"]:
            if parameter.grad is not None:
                rate = group["lr"] / (group["step"] + group["total"].item() + self.count)
                parameter.sub_(parameter.grad, alpha=rate)


@pytest.mark.parametrize("bucket_bytes", [1, 4 << 20])
def test_an_optimizer_that_counts_its_steps_counts_no_buckets(comm, bucket_bytes):
    model = wrap(network(), comm, "zero1", optimizer=Counting, bucket_bytes=bucket_bytes, lr=0.1)
    total = model.optimizer.param_groups[0]["total"]
    same(model, train(model, model.optimizer), alone(Counting, lr=0.1))
    assert total is model.optimizer.param_groups[0]["total"] and total == model.optimizer.count == STEPS


@pytest.mark.parametrize("strategy", SHARDING)
def test_clipping(comm, strategy):
    single, (features, labels) = network(), batches()[0]
    loss_of(single, features, labels).backward()
    torch.nn.utils.clip_grad_norm_(single.parameters(), 0.01, error_if_nonfinite=True)
    torch.optim.SGD(single.parameters(), lr=1.0).step()
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=200, clip_norm=0.01, lr=1.0)
    for _ in range(2):
        model.module.load_state_dict(network().state_dict())
        loss_of(model, mine(features), mine(labels)).backward()
        model.optimizer.step()
    model.settle()
    for ours, theirs in zip(model.parameters(), single.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-9)  # PyTorch adds 1e-6 to the norm


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_example_learns(monkeypatch, capsys, strategy):
    from benchmarks.peers import transformer

    words = f"--strategy {strategy} --steps 60 --every 15 --width 32 --layers 1 --length 16 --bucket-bytes 4K"
    monkeypatch.setattr(sys, "argv", ["transformer", *words.split()])
    transformer.main()
    lines = capsys.readouterr().out.splitlines()
    if RANK == 0:
        losses = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
        assert len(losses) == 4 and losses[-1] < losses[0] - 0.1
        assert any(line.startswith("hidden: ") for line in lines)
    else:
        assert not lines


# ---- parameters under way


@pytest.mark.parametrize("strategy", SHARDING)
def test_state_dict_waits(comm, strategy):
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=200, lr=0.1)
    train(model, model.optimizer)
    _, parameters = alone(torch.optim.SGD, lr=0.1)
    for ours, theirs in zip(model.module.state_dict().values(), parameters, strict=True):
        numpy.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-8, atol=1e-12)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.skipif(SIZE == 1, reason="one rank has all parameters")
@pytest.mark.parametrize("touch", [
    lambda model, part: part.state_dict(),
    lambda model, part: part.load_state_dict(network()[5].state_dict()),
    lambda model, part: deepcopy(part),
    lambda model, part: saved_and_loaded(part),
    lambda model, part: next(model.parameters()),
])  # fmt: skip
def test_parts_of_a_module_wait_for_their_parameters(comm, touch):
    model = wrap(network(), comm, "zero1", optimizer=torch.optim.SGD, bucket_bytes=1, lr=0.1)
    train(model, model.optimizer)
    part = model.module[5]
    assert not has_come(model, part.weight)  # the last forward that used it was before the step
    touch(model, part)
    assert has_come(model, part.weight)
    assert vars(deepcopy(part)).keys() == vars(torch.nn.Linear(5, 3)).keys()  # an ordinary one


class Ahead(torch.nn.Module):
    """Computes with the weight of a layer before it calls that layer."""

    def __init__(self):
        super().__init__()
        self.inner = network()
        self.last = torch.nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, features):
        return self.last(self.inner(features) @ self.last.weight.T)


def has_come(model, parameter):
    """Whether this rank has waited for the newest values of a parameter."""
    flat, = model.flats
    number, = (number for number, other in enumerate(flat.parameters) if other is parameter)
    return flat.reducer._current[flat.reducer.layout.bucket_of[number]] == flat.reducer.generation


@pytest.mark.skipif(SIZE == 1, reason="one rank has all parameters")
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("strategy", SHARDING)
def test_modules_wait_for_what_they_use_and_for_no_more(comm, strategy, loaded):
    def make():
        return wrap(Ahead(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=1, lr=0.1)

    model = make()
    train(model, model.optimizer)
    if loaded:  # the order of the parameters is known before any module computes
        state = model.optimizer.state_dict()
        model = make()
        model.optimizer.load_state_dict(state)
        train(model, model.optimizer)
    inner, last = model.module.inner, model.module.last
    seen = []
    inner[0].register_forward_pre_hook(lambda *_: seen.append(
        (has_come(model, last.weight), has_come(model, inner[0].weight), has_come(model, inner[5].weight))))  # fmt: skip
    model(batches()[0][0])
    assert seen == [(True, True, False)]


class Peeking(torch.optim.SGD):
    """Reads the model while it updates it."""

    def step(self):
        super().step()
        with pytest.raises(StaleParameters, match="read between an update and its publication"):
            self.model.state_dict()
        self.peeked = True


@pytest.mark.parametrize("strategy", SHARDING)
def test_parameters_in_the_middle_of_an_update_are_stale(comm, strategy):
    model = wrap(network(), comm, strategy, optimizer=Peeking, bucket_bytes=200, lr=0.1)
    same(model, train(model, model.optimizer), alone(torch.optim.SGD, lr=0.1))
    assert model.optimizer.peeked


@pytest.mark.parametrize("strategy", SHARDING)
def test_resuming(comm, strategy):
    """A model and optimizer loaded from what was saved go on as if there had been no interruption."""
    def make():
        return wrap(network(), comm, strategy, optimizer=torch.optim.Adam, bucket_bytes=200, lr=0.01)

    model = make()
    train(model, model.optimizer)
    saved = deepcopy((model.state_dict(), model.optimizer.state_dict()))
    other = make()
    other.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    losses = train(model, model.optimizer)
    assert train(other, other.optimizer) == losses


def test_resuming_with_other_buckets(comm):
    model = wrap(network(), comm, "zero1", optimizer=torch.optim.Adam, bucket_bytes=200)
    train(model, model.optimizer)
    other = wrap(network(), comm, "zero1", optimizer=torch.optim.Adam, bucket_bytes=300)
    with pytest.raises(ArgumentError, match=r"optimizer state: bytes: expected \[300, 300\], as in this run, got \[200, 200\]"):
        other.optimizer.load_state_dict(model.optimizer.state_dict())


# ---- costs


@pytest.mark.parametrize("strategy", SHARDING)
def test_optimizer_memory_is_sharded(comm, strategy):
    module = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Linear(60, 30))
    count = sum(one.numel() for one in module.parameters())
    model = wrap(module, comm, strategy, optimizer=torch.optim.Adam, bucket_bytes=4000)
    model(torch.ones(2, 40)).sum().backward()
    with torch._C.DisableTorchFunctionSubclass():
        held = sum(one.grad.untyped_storage().nbytes() for one in model.parameters())
    assert held == 4 * len(list(model.parameters()))  # an element each, for the shape
    model.optimizer.step()
    assert abs(model.optimizer_bytes / (2 * 4 * count / SIZE) - 1) < 0.05


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bytes_are_counted(comm, strategy):
    module = torch.nn.Linear(11, 12, dtype=torch.float64)  # 144 parameters: equal blocks at 1, 2, 3, 4, 6, … ranks
    model = wrap(module, comm, strategy, optimizer=torch.optim.SGD)
    for _ in range(3):
        with model.step():
            model(torch.ones(2, 11, dtype=torch.float64)).sum().backward()
            model.optimizer.step()
    model.settle()
    last = model.meter.steps[-1]
    if 144 % SIZE == 0:
        assert last["bytes"] == 2 * (SIZE - 1) * 144 * 8 // SIZE
    assert last["compute_s"] > 0 and last["step_s"] >= last["compute_s"] + last["exposed_s"] - 1e-6
