"""What `wrap` refuses: one clear error on every rank."""

import sys
from copy import deepcopy

import pytest

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.support.optional import require
from tests.support.cases import RANK, SIZE
from tests.support.torch_training import SHARDING, batches, loss_of, mine, network, torch, wrap

pytestmark = [pytest.mark.mpi, pytest.mark.thorough]


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
    model = wrap(network(), comm)
    for again in (model, model.module, model.module[0], torch.nn.Sequential(model.module[0], torch.nn.Tanh())):
        refused(r"module: expected one that is not wrapped: .*, or wrap copy\.deepcopy\(model\.module\)", again, comm)
    wrap(deepcopy(model.module), comm)
    refused("comm: expected a communicator, such as MPI.COMM_WORLD, got None", network(), None)


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


@pytest.mark.parametrize("strategy", SHARDING)
def test_another_group_of_parameters(comm, strategy):
    model = wrap(network(), comm, strategy, optimizer=torch.optim.SGD)
    with pytest.raises(ArgumentError, match=r"add_param_group: expected one group, .*, got \['lr', 'params'\]"):
        model.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 1.0})
    assert len(model.optimizer.param_groups) == 1


def test_sparse_gradients(comm):
    model = wrap(torch.nn.Embedding(4, 2, sparse=True), comm)
    with pytest.raises(ArgumentError, match="gradient of weight: expected a dense one"):
        model(torch.tensor([1])).sum().backward()


def test_pytorch_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # not importable
    with pytest.raises(LaunchError, match=r'training needs torch .* pip install "mpicoll\[torch\]"'):
        require("torch")
