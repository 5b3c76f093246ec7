"""PyTorch modules on any number of ranks: the losses of one process and of PyTorch's own, and one clear error on every rank."""

import sys
from copy import deepcopy

import numpy
import pytest
from mpi4py import MPI

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.support.optional import require
from mpicoll.train.parallel.reducer import StaleParameters

torch = pytest.importorskip("torch", reason="trains PyTorch modules where PyTorch is installed")

from benchmarks import transformer  # noqa: E402
from benchmarks.gloo import Gloo  # noqa: E402
from mpicoll.train.torch import wrap  # noqa: E402

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_example_learns(monkeypatch, capsys, strategy):
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


# ---- modules of all kinds


class Choice(torch.nn.Module):
    """Uses another branch on each rank and in each step; the last one never."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3, dtype=torch.float64) for _ in range(3))
        self.steps = RANK

    def forward(self, features):
        self.steps += 1
        return self.branches[self.steps % 2](features)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_use_different_parameters(comm, strategy):
    torch.manual_seed(1)
    model = wrap(Choice(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=1, lr=0.1)
    torch.manual_seed(1)
    single = Choice()
    optimizer = torch.optim.SGD(single.parameters(), lr=0.1)
    for features, labels in batches():
        optimizer.zero_grad()
        for rank in range(SIZE):  # every rank's rows through the branch that it takes
            single.steps = model.module.steps - RANK + rank
            (loss_of(single, features.chunk(SIZE)[rank], labels.chunk(SIZE)[rank]) / SIZE).backward()
        model.optimizer.zero_grad()
        loss_of(model, mine(features), mine(labels)).backward()
        model.optimizer.step()
        optimizer.step()
    model.settle()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


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


# ---- parameters under way


@pytest.mark.parametrize("strategy", SHARDING)
def test_state_dict_waits(comm, strategy):
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD, bucket_bytes=200, lr=0.1)
    train(model, model.optimizer)
    _, parameters = alone(torch.optim.SGD, lr=0.1)
    for ours, theirs in zip(model.module.state_dict().values(), parameters, strict=True):
        numpy.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-8, atol=1e-12)


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
    assert all(one.grad is None for one in model.parameters())
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


# ---- what is wrong


def refused(match, *arguments, **named):
    with pytest.raises(ArgumentError, match=match):
        wrap(*arguments, **named)


@pytest.mark.skipif(SIZE == 1, reason="ranks differ")
def test_ranks_differ(comm):
    last = RANK == SIZE - 1
    wider = torch.nn.Linear(3, 5 if last else 4)
    refused(f"tensor 0 of the module: ranks? 0.*: weight .4, 3. .*; rank {SIZE - 1}: weight .5, 3. ", wider, comm)
    other = network(dtype=torch.float64 if last else torch.float32)
    refused("ranks? 0.*: .*torch.float32 True; rank .*torch.float64", other, comm)
    refused(f"strategy: ranks? 0.*: zero1; rank {SIZE - 1}: zero2",
            network(), comm, "zero2" if last else "zero1", optimizer=torch.optim.SGD)
    refused(f"bucket_bytes: ranks? 0.*: 100; rank {SIZE - 1}: 200", network(), comm, bucket_bytes=200 if last else 100)
    refused(f"the optimizer: ranks? 0.*: SGD.*; rank {SIZE - 1}: SGD",
            network(), comm, optimizer=torch.optim.SGD, lr=0.1 + last)
    refused("number of tensors|missing", torch.nn.Sequential(*network()[:2 + last]), comm)


def test_arguments(comm):
    refused("strategy: expected allreduce, zero1 or zero2", network(), comm, "parameter_server")
    refused("strategy: expected", network(), comm, "zero3")
    refused("optimizer: expected a class of torch.optim, which zero2 shards, got None", network(), comm, "zero2")
    refused("not Adafactor, LBFGS", network(), comm, "zero1", optimizer=torch.optim.LBFGS)
    refused("clip_norm: expected None with allreduce", network(), comm, clip_norm=1.0)
    refused("options: expected an optimizer that takes them", network(), comm, lr=1.0)
    refused("parameters that require gradients", torch.nn.Tanh(), comm)
    refused("floating types", torch.nn.Linear(2, 2, dtype=torch.complex64), comm)


@pytest.mark.parametrize("strategy", SHARDING)
def test_order_of_calls(comm, strategy):
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD)
    (features, labels), *_ = batches()
    with pytest.raises(ArgumentError, match="expected a backward pass outside of no_sync"):
        model.optimizer.step()
    loss_of(model, mine(features), mine(labels)).backward()
    with pytest.raises(ArgumentError, match="expected step.. after a backward whose gradients were sent"):
        loss_of(model, mine(features), mine(labels)).backward()
    with pytest.raises(ArgumentError, match="closure: expected None"):
        model.optimizer.step(lambda: 0.0)
    model.optimizer.step()
    if strategy == "zero2":
        with pytest.raises(ArgumentError, match="accumulate: expected at least 2"), model.no_sync():
            pass


def test_sparse_gradients(comm):
    model = wrap(torch.nn.Embedding(4, 2, sparse=True), comm)
    with pytest.raises(ArgumentError, match="gradient of weight: expected a dense one"):
        model(torch.tensor([1])).sum().backward()


def test_pytorch_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # not importable
    with pytest.raises(LaunchError, match=r'training needs torch .* pip install "mpicoll\[torch\]"'):
        require("torch")
