"""Gradients of PyTorch modules that are sent in codes: by a hook of DistributedDataParallel, and by `wrap`."""

import io
from copy import deepcopy

import numpy
import pytest

from mpicoll.errors import ArgumentError
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.compressing import quantised
from tests.support.torch_group import torch

import mpicoll.torch
from mpicoll.train.torch import wrap

pytestmark = [pytest.mark.mpi, pytest.mark.thorough, pytest.mark.interpreters("auto")]

STRATEGIES = ("allreduce", "zero1", "zero2")
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
#: of one quantisation, relative to the largest element of a group
STEP = {"int8": 1 / 254, "int4": 1 / 14, "bfloat16": 1 / 256, "float16": 1 / 2048}


def network(dtype=torch.float32):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(40, 70), torch.nn.Tanh(), torch.nn.LayerNorm(70), torch.nn.Linear(70, 50), torch.nn.Tanh(),
              torch.nn.Linear(50, 3)]  # fmt: skip
    return torch.nn.Sequential(*layers).to(dtype)


def backward(model, dtype=torch.float32):
    """Gradients of this rank's rows, the same in each call."""
    random = torch.Generator().manual_seed(RANK)
    features = torch.randn(16, 40, generator=random).to(dtype)
    labels = torch.randn(16, 3, generator=random).to(dtype)
    loss = torch.nn.functional.mse_loss(model(features), labels)
    loss.backward()
    return loss.item()


def averages(hook, dtype=torch.float32, steps=1, **options):
    """The mean over some steps of the gradients that DistributedDataParallel gives, in float64."""
    model = torch.nn.parallel.DistributedDataParallel(network(dtype), bucket_cap_mb=0.008, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    totals = [torch.zeros(parameter.shape, dtype=torch.float64) for parameter in model.parameters()]
    for _ in range(steps):
        model.zero_grad()
        backward(model, dtype)
        for total, parameter in zip(totals, model.parameters()):
            total += parameter.grad.double() / steps
    return totals


def same_on_all(tensors):
    everyone = WORLD.allgather([tensor.numpy().tobytes() for tensor in tensors])
    assert all(one == everyone[0] for one in everyone)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compression", ["int8", "int4", "bfloat16", "float16"])
@pytest.mark.parametrize("error_feedback", [False, True])
def test_averages_within_the_bound(dtype, compression, error_feedback):
    exact = averages(None, dtype)
    coded = averages(mpicoll.torch.compression_hook(compression, error_feedback, algorithm="pairwise"), dtype)
    same_on_all(coded)
    narrow = 0.02 if dtype.itemsize == 2 else 1e-6
    for one, other in zip(coded, exact):
        allowed = narrow * exact[0].abs().max()
        if one.dim() > 1:  # each contribution is off by a step of its own, and their average by another
            most = max(WORLD.allgather(max(tensor.abs().max().item() for tensor in exact))) * SIZE
            allowed = allowed + 2 * STEP[compression] * most
        assert (one - other).abs().max() <= allowed


@pytest.mark.usefixtures("group")
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}])
@pytest.mark.parametrize("compression", ["int8", "int4"])
def test_error_feedback_makes_the_mean_of_steps_exact(compression, options):
    """Also where buckets are made anew, as after the first step."""
    steps = 16
    exact = averages(None)
    errors = []
    for error_feedback in (False, True):
        hook = mpicoll.torch.compression_hook(compression, error_feedback, algorithm="pairwise")
        coded = averages(hook, steps=steps, **options)
        same_on_all(coded)
        errors.append(max((one - other).abs().max().item() for one, other in zip(coded, exact)))
    assert errors[1] < errors[0] / 5


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("error_feedback", [False, True])
def test_within_a_node_nothing_is_compressed_by_default(error_feedback):
    coded = averages(mpicoll.torch.compression_hook("int4", error_feedback))
    for one, other in zip(coded, averages(None)):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("group")
def test_a_training_with_the_hook():
    losses = {}
    for name in (None, "int8", "int4"):
        model = torch.nn.parallel.DistributedDataParallel(network())
        if name is not None:
            model.register_comm_hook(None, mpicoll.torch.compression_hook(name, True, algorithm="pairwise"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            loss = backward(model)
            optimizer.step()
        losses[name] = WORLD.allreduce(loss) / SIZE
    assert losses["int8"] < 1.1 * losses[None] + 1e-3 and losses["int4"] < 1.5 * losses[None] + 1e-3


@pytest.mark.parametrize("arguments, text", [
    (("int9",), "compression: expected one of float16, bfloat16, int8, int4, got 'int9'"),
    (("int8", 3), "error_feedback: expected False or True"),
])  # fmt: skip
def test_hooks_that_there_are_not(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        mpicoll.torch.compression_hook(*arguments)
    with pytest.raises(ArgumentError, match="algorithm: expected pairwise with error_feedback"):
        mpicoll.torch.compression_hook("int8", True, algorithm="hierarchical")


@pytest.mark.usefixtures("group")
def test_a_process_group_that_is_not_ours():
    with pytest.raises(ArgumentError, match='process group: expected one of the backend "mpicoll"'):
        mpicoll.torch.compression_hook("int8")(object(), None)


def saved(state):
    """As a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def hooked(module=None, state=None, **options):
    """A module with a hook, and both."""
    model = torch.nn.parallel.DistributedDataParallel(module or network(), **options)
    hook = mpicoll.torch.compression_hook("int4", True, algorithm="pairwise")
    model.register_comm_hook(None, hook)
    if state is not None:
        hook.load_state_dict(model, state)
    return model, hook


@pytest.mark.usefixtures("group")
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("caps", [(0.008, 0.008), (25, 0.008)])
def test_what_was_given_and_what_the_state_of_the_hook_has_are_all_gradients(caps):
    """Also where a second run goes on with the state of the first, in buckets of other sizes."""
    steps = 5
    exact = averages(None)
    names = [name for name, _ in network().named_parameters()]
    given = {name: torch.zeros(one.shape, dtype=torch.float64) for name, one in zip(names, exact)}
    state, before = None, []
    for cap in caps:
        model, hook = hooked(state=state, bucket_cap_mb=cap)
        for _ in range(steps):
            model.zero_grad()
            backward(model)
            for name, parameter in model.module.named_parameters():
                given[name] += parameter.grad.double()
        state = saved(hook.state_dict(model))
        weights = {name for name, parameter in model.module.named_parameters() if parameter.dim() > 1}
        assert weights <= set(state) <= set(names) and hook.state_dict(model.module).keys() == state.keys()
        left = {name: sum(WORLD.allgather(values.double())) for name, values in state.items()}
        before.append(max(values.abs().max() for values in left.values()))
    for name, one in zip(names, exact):
        torch.testing.assert_close(given[name] + left.get(name, 0), 2 * steps * one, rtol=1e-5, atol=1e-6)
    assert min(before) > 1e-4


@pytest.mark.usefixtures("group")
def test_a_resumed_run_of_the_hook_has_the_same_bits():
    """Of a module with one bucket, which DistributedDataParallel does not make anew."""
    losses = {}
    for resumed in (False, True):
        torch.manual_seed(0)
        model, hook = hooked(torch.nn.Linear(40, 3, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        found = losses[resumed] = []
        for step in range(8):
            if resumed and step == 4:
                state = saved({"model": model.module.state_dict(), "hook": hook.state_dict(model)})
                module = torch.nn.Linear(40, 3, bias=False)
                module.load_state_dict(state["model"])
                model, hook = hooked(module, state["hook"])
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            optimizer.zero_grad()
            found.append(backward(model))
            optimizer.step()
    assert losses[True] == losses[False]


@pytest.mark.usefixtures("group")
def test_states_of_other_modules_are_refused():
    model, hook = hooked()
    assert hook.state_dict(model) == {}
    with pytest.raises(ArgumentError, match="residuals of 7.weight: expected no parameter of that name"):
        hook.load_state_dict(model, {"7.weight": torch.zeros(3)})
    with pytest.raises(ArgumentError, match=r"residuals of 0.weight: expected shape \(70, 40\), got \(3,\)"):
        hook.load_state_dict(model, {"0.weight": torch.zeros(3)})


# ---- wrap


def steps(model, count=6):
    """The losses of some updates."""
    losses = []
    for _ in range(count):
        model.optimizer.zero_grad()
        losses.append(backward(model))
        model.optimizer.step()
    return losses


def wrapped(strategy, comm, **options):
    options = {"optimizer": torch.optim.SGD, "lr": 0.1, "algorithm": "pairwise", "bucket_bytes": 4000, **options}
    return wrap(network(), comm, strategy, **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("error_feedback", [False, True])
def test_a_module_learns_as_without(comm, strategy, error_feedback):
    exact = steps(wrapped(strategy, comm), 20)
    model = wrapped(strategy, comm, compression="int8", error_feedback=error_feedback)
    coded = steps(model, 20)
    assert abs(coded[-1] - exact[-1]) < 0.02 * exact[-1] and (SIZE == 1 or coded != exact)
    model.settle()
    same_on_all([parameter.detach() for parameter in model.parameters()])
    assert (model.residual_bytes > 0) == (error_feedback and SIZE > 1)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
@pytest.mark.parametrize("options", [
    {"compression": "int4", "error_feedback": True}, {"parameter_compression": "int8"},
    {"compression": "int8", "error_feedback": True, "parameter_compression": "int4"},
])  # fmt: skip
def test_residuals_and_masters_are_part_of_the_state(comm, strategy, options):
    model = wrapped(strategy, comm, **options)
    steps(model)
    saved = deepcopy((model.state_dict(), model.optimizer.state_dict()))
    other = wrapped(strategy, comm, **options)
    other.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    assert steps(other) == steps(model)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("is_late", [False, True])
def test_residuals_are_saved_by_the_names_of_parameters(comm, strategy, is_late):
    options = {"compression": "int4", "error_feedback": True}
    model = wrapped(strategy, comm, **options)
    assert model.feedback_state_dict() == {}
    steps(model)
    model.settle()
    saved = deepcopy((model.module.state_dict(), model.optimizer.state_dict(), model.feedback_state_dict()))
    assert {name: value.shape for name, value in saved[2].items()} == (
        {name: value.shape for name, value in model.module.named_parameters()} if SIZE > 1 else {})
    assert any(value.abs().max() > 0 for value in saved[2].values()) == (SIZE > 1)
    other = wrapped(strategy, comm, **options)
    if is_late:  # loaded into buffers that have other residuals
        steps(other, 2)
        other.settle()
    other.module.load_state_dict(saved[0])
    if strategy == "allreduce":
        other.optimizer.load_state_dict(saved[1])
    other.load_feedback_state_dict(saved[2])
    assert steps(other) == steps(model)


def one_overflow(model, parameters):
    """Whether the gradients of some steps are finite; those of one element of one rank overflow in the second."""
    are_finite = []
    for step in range(4):
        model.zero_grad()
        features = torch.ones(1, 40)
        features[0, 0] = 1e38 if step == 1 and RANK == 0 else 1
        model(features).sum().mul(10).backward()
        are_finite.append(all(bool(torch.isfinite(parameter.grad).all()) for parameter in parameters))
    return are_finite


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("compression", ["int8", "float16"])
def test_one_overflow_leaves_later_gradients_finite(comm, compression):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 3))
    model.register_comm_hook(None, mpicoll.torch.compression_hook(compression, True, algorithm="pairwise"))
    assert one_overflow(model, list(model.parameters())) == [True, False, True, True]
    for error_feedback in (False, True):
        options = {"compression": compression, "error_feedback": error_feedback, "algorithm": "pairwise"}
        model = wrap(torch.nn.Linear(40, 3), comm, "allreduce", **options)
        assert one_overflow(model, list(model.parameters())) == [True, False, True, True]


def test_residuals_that_belong_to_no_parameter(comm):
    model = wrapped("allreduce", comm, compression="int8", error_feedback=True)
    with pytest.raises(ArgumentError, match="residuals of 7.weight: expected no parameter of that name"):
        model.load_feedback_state_dict({"7.weight": torch.zeros(3)})
    with pytest.raises(ArgumentError, match=r"residuals of 0.weight: expected shape \(70, 40\), got \(3,\)"):
        model.load_feedback_state_dict({"0.weight": torch.zeros(3)})


class Steady(torch.nn.Module):
    """Gradients that do not depend on the parameters."""

    def __init__(self, dtype):
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(70, 41, generator=random).to(dtype))
        self.bias = torch.nn.Parameter(torch.randn(70, generator=random).to(dtype))
        self.slopes = torch.randn(70, 41, generator=random).to(dtype)

    def forward(self):
        return (self.weight * self.slopes).sum() + self.bias.sum()


def steady(strategy, comm, dtype, **options):
    """The module after five steps, after values were written to some elements, and after two more; and its memory."""
    model = wrap(Steady(dtype), comm, strategy, optimizer=torch.optim.SGD, lr=0.01, algorithm="pairwise", **options)
    found = []
    for count in (5, 2):
        for _ in range(count):
            model.optimizer.zero_grad()
            model().backward()
            model.optimizer.step()
        model.settle()
        found.append([parameter.detach().clone() for parameter in model.module.parameters()])
        with torch.no_grad():
            model.module.weight[20:50] = 9.0  # none is: to write what is there changes nothing
    return found, model.optimizer_bytes


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
@pytest.mark.parametrize("dtype, kind", [
    (torch.float32, "int8"), (torch.float32, "int4"), (torch.float64, "int8"), (torch.bfloat16, "int8"),
])  # fmt: skip
def test_parameters_in_codes_of_shards_that_are_exact(comm, strategy, dtype, kind):
    """Updates add up, whatever codes lose; what a program writes counts."""
    exact, held = steady(strategy, comm, dtype)
    coded, more = steady(strategy, comm, dtype, parameter_compression=kind)
    size = exact[0][0].numel()
    shard = -(-size // SIZE)
    assert more - held == shard * dtype.itemsize
    for (weight, bias), (wanted, other) in zip(coded, exact):
        same_on_all([weight.double(), bias.double()])
        assert torch.equal(bias, other)
        flat = numpy.zeros(shard * SIZE, "f4")
        flat[:size] = wanted.float().reshape(-1)
        decoded = numpy.concatenate([quantised(part, kind) for part in flat.reshape(SIZE, shard)])[:size]
        assert torch.equal(weight.reshape(-1), torch.from_numpy(decoded).to(dtype))


def test_parameters_of_allreduce_are_not_sent(comm):
    with pytest.raises(ArgumentError, match="parameter_compression: expected None: allreduce sends no parameters"):
        wrapped("allreduce", comm, parameter_compression="int8")
