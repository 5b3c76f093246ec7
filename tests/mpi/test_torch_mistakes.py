"""What looks like training of a wrapped module, and is not: named on every rank, and nothing is frozen in silence."""

import copy
import io

import pytest

from mpicoll import ArgumentError
from tests.support.torch_training import SHARDING, STRATEGIES, batches, loss_of, mine, network, torch, wrap

pytestmark = pytest.mark.mpi


def trained(comm, strategy, steps=2, module=None):
    """A module after some steps."""
    model = wrap(network() if module is None else module, comm, strategy, optimizer=torch.optim.SGD, lr=0.1)
    for features, labels in batches(steps=steps):
        make_step(model, features, labels)
    return model


def learn(model, features, labels):
    model.optimizer.zero_grad()
    loss = loss_of(model, mine(features), mine(labels))
    loss.backward()
    return loss.item()


def make_step(model, features, labels):
    loss = learn(model, features, labels)
    model.optimizer.step()
    return loss


@pytest.mark.parametrize("strategy", SHARDING)
def test_a_parameter_that_left_its_buffer_is_named(comm, strategy):
    model = trained(comm, strategy)
    model.settle()
    weight = next(model.module.parameters())
    weight.data = weight.data.clone()
    with pytest.raises(ArgumentError, match=r"parameter 0\.weight: expected it in the buffer.*copy_"):
        make_step(model, *batches()[0])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_type_after_the_first_step_is_named(comm, strategy):
    model = trained(comm, strategy)
    model.settle()
    model.module.float()
    features, labels = batches(dtype=torch.float32)[0]
    with pytest.raises(ArgumentError, match=r"parameter 0\.weight: expected it in the buffer.*float32"):
        make_step(model, features, labels)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_parameter_that_is_frozen_or_thawed_later_is_named(comm, strategy, steps):
    for is_trained in (True, False):
        module = network()
        module[0].requires_grad_(is_trained)
        model = trained(comm, strategy, steps, module)
        module[0].requires_grad_(not is_trained)
        with pytest.raises(ArgumentError, match=rf"parameter 0\.weight: expected requires_grad.*got {not is_trained}"):
            make_step(model, *batches()[0])
    model.state_dict()


def test_values_may_change_in_place(comm):
    model = trained(comm, "zero1")
    model.settle()
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.data.copy_(torch.zeros_like(parameter))
    make_step(model, *batches()[0])
    model.settle()
    assert all(torch.isfinite(one).all() for one in model.module.parameters())
    assert any(one.abs().max() > 0 for one in model.module.parameters())


@pytest.mark.parametrize("strategy", SHARDING)
def test_clipping_by_pytorch_is_refused_where_it_would_clip_nothing(comm, strategy):
    model = trained(comm, strategy)
    learn(model, *batches()[0])
    for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
        with pytest.raises(ArgumentError, match=r"gradient: expected.*clip_norm"):
            clip(model.parameters(), 1e-3)
    model.optimizer.step()  # it goes on
    make_step(model, *batches()[0])


def test_clipping_by_pytorch_clips_with_allreduce(comm):
    model = trained(comm, "allreduce")
    learn(model, *batches()[0])
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3) > 1e-3
    norms = [one.grad.norm() for one in model.parameters()]
    assert torch.stack(norms).norm() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_dropped_before_and_after_a_step(comm, strategy, set_to_none):
    model = trained(comm, strategy)
    for features, labels in batches(steps=2):
        learn(model, features, labels)
        model.optimizer.zero_grad(set_to_none)  # this backward counts for nothing
        make_step(model, features, labels)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_of_a_loss_that_reaches_no_parameter_is_refused(comm, strategy):
    model = trained(comm, strategy)
    torch.zeros((), requires_grad=True).backward()
    with pytest.raises(ArgumentError, match=r"step\(\): expected a backward pass.*0 \* model\(features\)\.sum\(\)"):
        model.optimizer.step()
    features, labels = batches()[0]
    loss = 0 * model(features).sum() if comm.Get_rank() else loss_of(model, features, labels)
    loss.backward()
    model.optimizer.step()


def test_a_closure_calls_backward_in_the_step(comm):
    model = trained(comm, "allreduce")
    before = model.module[0].weight.clone()
    for step in (model.optimizer.step, lambda closure: model.optimizer.step(closure=closure)):
        step(lambda: learn(model, *batches()[0]))
    assert not torch.equal(before, model.module[0].weight)


@pytest.mark.parametrize("options", [{}, {"fused": True}])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loss_scale_of_pytorch_is_for_allreduce(comm, strategy, options):
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, lr=0.1, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    features, labels = batches()[0]
    for _ in range(2):
        scaler.scale(loss_of(model, features, labels)).backward()
        if strategy == "allreduce":
            scaler.step(model.optimizer)
            scaler.update()
            continue
        with pytest.raises(ArgumentError, match="GradScaler: expected strategy allreduce"):
            scaler.step(model.optimizer)
        torch.amp.GradScaler("cpu", enabled=False).step(model.optimizer)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, saved_and_loaded])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_copy_of_the_module_is_an_ordinary_module(comm, strategy, duplicate):
    model = trained(comm, strategy)
    twin = duplicate(duplicate(model.module))
    before = [one.detach().clone() for one in twin.parameters()]
    model.settle()
    assert all(torch.equal(one, other) for one, other in zip(before, model.module.parameters(), strict=True))
    make_step(model, *batches()[0])
    assert all(torch.equal(one, other) for one, other in zip(before, twin.parameters(), strict=True))
    if comm.Get_rank() == 0:  # it needs no other rank
        loss_of(twin, *batches()[0]).backward()
        assert all(one.grad is not None for one in twin.parameters())
    twin.load_state_dict(model.module.state_dict())


def test_a_copy_of_the_wrapped_module_is_refused(comm):
    model = trained(comm, "zero1")
    for duplicate in (copy.deepcopy, saved_and_loaded):
        with pytest.raises(ArgumentError, match=r"copy its \.module"):
            duplicate(model)


class Failing(torch.autograd.Function):
    """Runs out of memory in backward, after the gradients of the layers above."""

    @staticmethod
    def forward(ctx, features):
        return features.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise MemoryError


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_backward_after_one_that_raised_is_refused(comm, strategy, steps):
    model = trained(comm, strategy, steps)
    features, labels = batches()[0]
    with pytest.raises(MemoryError):
        loss_of(torch.nn.Sequential(model.module[:3], Layer(Failing), model.module[3:]), features, labels).backward()
    model.zero_grad()
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"backward\(\): expected the one before to have ended on rank"):
            learn(model, features, labels)
    with pytest.raises(ArgumentError, match="got an exception in it"):
        model.optimizer.step()
    model.state_dict()  # for a new job


class Layer(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, features):
        return self.function.apply(features)


def wider():
    module = network()
    module[0] = torch.nn.Linear(module[0].in_features, module[0].out_features + 1, dtype=torch.float64)
    return module


@pytest.mark.parametrize("strategy", SHARDING)
def test_optimizer_state_of_another_module_is_refused_and_changes_nothing(comm, strategy):
    state = trained(comm, strategy, 1).optimizer.state_dict()
    deeper = torch.nn.Sequential(*network(), torch.nn.Linear(3, 3, dtype=torch.float64))
    for module, text in ((deeper, r"6\.weight: expected \(3, 3\).*, got 'no such"), (wider(), r"0\.weight: expected")):
        model = wrap(module, comm, strategy, optimizer=torch.optim.SGD, lr=0.1)
        before = [one.clone() for one in module.state_dict().values()]
        with pytest.raises(ArgumentError, match="optimizer state: " + text):
            model.optimizer.load_state_dict(state)
        assert not model.flats
        assert all(map(torch.equal, before, module.state_dict().values()))


@pytest.mark.parametrize("strategy", SHARDING)
def test_optimizer_state_of_an_earlier_version_is_loaded_where_its_names_are_those_of_the_module(comm, strategy):
    state = trained(comm, strategy, 1).optimizer.state_dict()
    for name in ("parameters", "compressed"):
        del state["cut"][name]
    trained(comm, strategy, 0).optimizer.load_state_dict(state)
    state["cut"]["orders"] = (state["cut"]["orders"][0][1:], state["cut"]["orders"][1])
    with pytest.raises(ArgumentError, match="got 'no such parameter'"):
        trained(comm, strategy, 0).optimizer.load_state_dict(state)


@pytest.mark.parametrize("name, option", [("residuals", "error_feedback"), ("masters", "parameter_compression")])
def test_optimizer_state_of_codes_that_there_are_not_is_refused(comm, name, option):
    model = trained(comm, "zero1", 0)
    state = {**model.optimizer.state_dict(), name: [torch.zeros(3)]}
    with pytest.raises(ArgumentError, match=rf"{name}: expected none, as this run has no {option}.*drop them, got 'those"):
        model.optimizer.load_state_dict(state)
    model.optimizer.load_state_dict({**state, name: []})
