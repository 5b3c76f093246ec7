"""Trainings of PyTorch modules that are short, and the same in one process. Without PyTorch, who imports this is skipped."""

import numpy
import pytest

from tests.support.cases import RANK, SIZE, WORLD

torch = pytest.importorskip("torch", reason="trains PyTorch modules where PyTorch is installed")

from mpicoll.train.torch import wrap  # noqa: E402, F401

STRATEGIES, SHARDING = ("allreduce", "zero1", "zero2"), ("zero1", "zero2")
ROWS, STEPS, WIDTH = 12, 6, 6
torch.set_num_threads(1)


def network(seed=0, dtype=torch.float64):
    """Layers of several sizes; seeds differ between ranks where the parameters of rank 0 must win."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(WIDTH, 7), torch.nn.Tanh(), torch.nn.LayerNorm(7), torch.nn.Linear(7, 5), torch.nn.Tanh(),
              torch.nn.Linear(5, 3)]  # fmt: skip
    return torch.nn.Sequential(*layers).to(dtype)


def batches(rows=ROWS, steps=STEPS, dtype=torch.float64):
    """The same batches on every rank, each of `rows` rows, a multiple of the number of ranks."""
    rows, random = rows * SIZE, numpy.random.default_rng(3)
    draw = lambda width: torch.from_numpy(random.standard_normal((rows, width))).to(dtype)
    return [(draw(WIDTH), draw(3)) for _ in range(steps)]


def mine(tensor, parts=1, part=0):
    """This rank's rows of a micro-batch."""
    return tensor.chunk(parts)[part].chunk(SIZE)[RANK]


def loss_of(model, features, labels):
    return torch.nn.functional.mse_loss(model(features), labels)


def alone(kind, scheduler=None, **options):
    """Losses and parameters of one process, before each update and after all."""
    model, losses = network(), []
    optimizer = kind(model.parameters(), **options)
    schedule = scheduler and scheduler(optimizer)
    for features, labels in batches():
        optimizer.zero_grad()
        loss = loss_of(model, features, labels)
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(loss.item())
    return losses, [one.detach().numpy() for one in model.parameters()]


def train(model, optimizer, accumulate=1, schedule=None):
    """Mean losses over the ranks."""
    losses = []
    for features, labels in batches():
        optimizer.zero_grad()
        total = 0.0
        for part in range(accumulate):
            loss = loss_of(model, mine(features, accumulate, part), mine(labels, accumulate, part)) / accumulate
            if part < accumulate - 1:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
            total += loss.item()
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(total)
    return [WORLD.allreduce(loss) / SIZE for loss in losses]


def same(model, losses, expected):
    """Assert that losses and parameters are the expected ones."""
    reference, parameters = expected
    numpy.testing.assert_allclose(losses, reference, rtol=1e-10)
    model.settle()
    for ours, theirs in zip(model.module.parameters(), parameters, strict=True):
        numpy.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-8, atol=1e-12)
