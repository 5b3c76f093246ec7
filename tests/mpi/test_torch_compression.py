"""Gradients of PyTorch modules that are sent in codes: by a hook of DistributedDataParallel, and by `wrap`."""

from copy import deepcopy

import pytest

from mpicoll.errors import ArgumentError
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.torch_group import torch

import mpicoll.torch
from mpicoll.train.torch import wrap

pytestmark = [pytest.mark.mpi, pytest.mark.thorough]

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
def test_residuals_are_part_of_the_state(comm, strategy):
    options = {"compression": "int4", "error_feedback": True}
    model = wrapped(strategy, comm, **options)
    steps(model)
    saved = deepcopy((model.state_dict(), model.optimizer.state_dict()))
    other = wrapped(strategy, comm, **options)
    other.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    assert steps(other) == steps(model)
