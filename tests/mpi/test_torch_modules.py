"""PyTorch modules of all kinds on any number of ranks: branches, tied weights, several dtypes, buffers."""

from copy import deepcopy

import numpy
import pytest

from benchmarks.peers.gloo import Gloo
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.torch_training import STEPS, STRATEGIES, WIDTH, batches, loss_of, mine, network, torch, wrap

pytestmark = [pytest.mark.mpi, pytest.mark.thorough, pytest.mark.interpreters("auto")]


class Tied(torch.nn.Module):
    """Characters in and out through one matrix, with attention, which reads a parameter of a module that it never calls."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.encode = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = torch.nn.Linear(8, 11)
        self.out.weight = self.embed.weight

    def forward(self, text):
        return self.out(self.encode(self.embed(text)))


def tied():
    torch.manual_seed(2)
    return Tied().double()


def spell(model, text):
    return torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@pytest.fixture
def ddp():
    """PyTorch's DistributedDataParallel on the ranks of this job, with gloo."""
    with Gloo(WORLD):
        yield torch.nn.parallel.DistributedDataParallel


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_are_those_of_pytorch(comm, ddp, strategy):
    theirs = ddp(tied())
    ours = wrap(tied(), comm, strategy, optimizer=torch.optim.AdamW, bucket_bytes=500, lr=0.01)
    losses, random = [], numpy.random.default_rng(0)
    theirs.optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    for _ in range(8):
        text = torch.from_numpy(random.integers(0, 11, (2 * SIZE, 9)))
        losses.append([])
        for model in (theirs, ours):
            model.optimizer.zero_grad()
            loss = spell(model, mine(text))
            loss.backward()
            model.optimizer.step()
            losses[-1].append(loss.item())
    numpy.testing.assert_allclose(*zip(*losses), rtol=1e-10)


class Choice(torch.nn.Module):
    """Uses another branch on each rank and in each step; the last one never."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3, dtype=torch.float64) for _ in range(3))
        self.steps = RANK

    def forward(self, features):
        self.steps += 1
        return self.branches[self.steps % 2](features)


def train_as_one_process(comm, make, strategy, rtol, **options):
    """Compare with one process, which computes every rank's rows through the branch that the rank takes."""
    torch.manual_seed(1)
    model = wrap(make(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=1, lr=0.1, **options)
    torch.manual_seed(1)
    single = make()
    optimizer = torch.optim.SGD(single.parameters(), lr=0.1)
    for features, labels in batches():
        optimizer.zero_grad()
        for rank in range(SIZE):
            single.steps = getattr(model.module, "steps", RANK) - RANK + rank
            (loss_of(single, features.chunk(SIZE)[rank], labels.chunk(SIZE)[rank]) / SIZE).backward()
        model.optimizer.zero_grad()
        loss_of(model, mine(features), mine(labels)).backward()
        model.optimizer.step()
        optimizer.step()
    model.settle()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol / 100)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_use_different_parameters(comm, strategy):
    train_as_one_process(comm, Choice, strategy, 1e-10)


class Branches(torch.nn.Module):
    """One for each dtype; ranks use another one in each step."""

    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        self.wide = deepcopy(self.narrow).double()
        self.steps = RANK

    def forward(self, features):
        self.steps += 1
        return self.narrow(features.float()).double() if self.steps % 2 else self.wide(features)


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_use_parameters_of_different_dtypes(comm, strategy, overlap):
    """More buckets of each dtype than zero2 has buffers, so that some wait for others."""
    train_as_one_process(comm, Branches, strategy, 1e-5, overlap=overlap)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_attention_and_tied_weights(comm, strategy):
    model, single = wrap(tied(), comm, strategy, optimizer=torch.optim.Adam, bucket_bytes=1, lr=0.01), tied()
    optimizer, random = torch.optim.Adam(single.parameters(), lr=0.01), numpy.random.default_rng(0)
    for _ in range(STEPS):
        text = torch.from_numpy(random.integers(0, 11, (2 * SIZE, 9)))
        optimizer.zero_grad()
        expected = spell(single, text)
        expected.backward()
        optimizer.step()
        model.optimizer.zero_grad()
        loss = spell(model, mine(text))
        loss.backward()
        model.optimizer.step()
        numpy.testing.assert_allclose(WORLD.allreduce(loss.item()) / SIZE, expected.item(), rtol=1e-10)
        with torch.no_grad():  # while parameters are under way, and before any hook has waited for them
            torch.testing.assert_close(spell(model, text), spell(single, text), rtol=1e-10, atol=0)
    model.eval()  # from here PyTorch's fast path computes the layer without calling the modules inside
    single.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(text), single(text), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_several_dtypes_and_frozen_parameters(comm, strategy):
    def mixed():
        layers = network()
        layers[0].float()
        layers[3].weight.requires_grad_(False)
        return torch.nn.Sequential(layers[0], Widen(), *layers[1:])

    single = mixed()
    model = wrap(mixed(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=100, lr=0.1)
    optimizer = torch.optim.SGD(single.parameters(), lr=0.1)
    for features, labels in batches():
        for one, by, part in ((single, optimizer, lambda rows: rows), (model, model.optimizer, mine)):
            by.zero_grad()
            loss_of(one, part(features).float(), part(labels)).backward()
            by.step()
    model.settle()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


class Widen(torch.nn.Module):
    def forward(self, features):
        return features.double()


class Scaled(torch.nn.Module):
    """With a parameter of no dimensions."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3, dtype=torch.float64)
        self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, features):
        return self.layer(features) * self.scale


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_parameter_of_no_dimensions(comm, strategy):
    train_as_one_process(comm, Scaled, strategy, 1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bfloat16(comm, strategy):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own")
    model = wrap(network(dtype=torch.bfloat16), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=100, lr=0.5)
    features, labels = batches(dtype=torch.bfloat16)[0]
    losses = []
    for _ in range(30):
        model.optimizer.zero_grad()
        loss = loss_of(model, mine(features), mine(labels))
        loss.backward()
        model.optimizer.step()
        losses.append(WORLD.allreduce(loss.item()))
    assert losses[-1] < 0.9 * losses[0]
    state = [one.float().numpy().tobytes() for one in model.state_dict().values()]
    assert WORLD.allgather(state) == [state] * SIZE


def test_buffers_and_odd_strides_come_from_rank_0(comm):
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for number, tensor in enumerate(module.state_dict().values()):
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + 100 * RANK + number)
    model = wrap(module, comm)
    for number, tensor in enumerate(model.state_dict().values()):
        assert torch.equal(tensor, torch.arange(tensor.numel()).reshape(tensor.shape).to(tensor) + number)


@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
def test_gradients_that_are_added_up_take_no_second_buffer(comm, strategy):
    """Those that backward makes lie in the buffer that is reduced when the context is left."""
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, lr=0.1)
    with model.no_sync():
        loss_of(model, *map(mine, batches()[0])).backward()
    held = sorted((one.grad.data_ptr(), one.grad.nbytes) for one in model.parameters())
    assert [start + nbytes for start, nbytes in held[:-1]] == [start for start, _ in held[1:]]
