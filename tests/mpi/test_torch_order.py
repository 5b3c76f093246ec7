"""PyTorch matches calls by their order in the group alone: waiting and not, in callbacks, in backward."""

import time

import pytest

from tests.support.cases import RANK, SIZE
from tests.support.torch_group import TOTAL, each, mine, torch

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch  # noqa: F401

pytestmark = [pytest.mark.mpi, pytest.mark.thorough, pytest.mark.usefixtures("group")]


def calls(size):
    """Each kind of call, as a function of whether it waits."""
    whole = torch.zeros(SIZE * size)
    yield lambda **form: dist.all_reduce(mine(size), **form)
    yield lambda **form: dist.broadcast(mine(size), SIZE - 1, **form)
    yield lambda **form: dist.all_gather_into_tensor(whole, mine(size), **form)
    yield lambda **form: dist.all_gather(each(lambda rank: torch.zeros(rank + size)), mine(RANK + size), **form)
    yield lambda **form: dist.reduce_scatter_tensor(mine(size), mine(SIZE * size), **form)
    yield lambda **form: dist.all_to_all_single(torch.zeros(SIZE * size), mine(SIZE * size), **form)
    yield lambda **form: dist.reduce(mine(size), 0, **form)
    yield lambda **form: dist.gather(mine(size), each(lambda _: mine(size)) if RANK == 0 else None, 0, **form)
    yield lambda **form: dist.scatter(mine(size), each(lambda _: mine(size)) if RANK == 0 else None, 0, **form)
    yield lambda **form: dist.barrier(**form)


@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_some_ranks_wait_in_a_call_and_others_later(size):
    for repetition in range(4):  # the first is compared, later ones are known
        works = [call(async_op=True) if (RANK + repetition) % 2 else call() for call in calls(size)]
        for work in filter(None, works):
            work.wait()
        tensor = mine(size)
        work = dist.all_reduce(tensor, async_op=bool((RANK + repetition) % 2))
        if work is not None:
            work.wait()
        assert tensor[0].item() == TOTAL


def test_callbacks_begin_calls_while_the_program_makes_others():
    """What a rank's callbacks begin, and when, has no part in how the program's own calls are matched."""
    works = [dist.all_reduce(mine(100 + number), async_op=True) for number in range(4)]

    def again(future):
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0] + 0

    futures = [work.get_future().then(again) for work in works]
    for number in range(20):
        tensor = mine(5 + number)
        if RANK == number % SIZE:
            time.sleep(0.003)
        dist.all_reduce(tensor)
        assert tensor[0].item() == TOTAL
    assert [future.wait()[0].item() for future in futures] == [TOTAL * SIZE] * 4


def network(width=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, 48), torch.nn.Tanh(), torch.nn.Linear(48, 4))


@pytest.mark.parametrize("bucket_cap_mb", [0.0005, 0.001, 25])
def test_power_sgd_on_many_buckets(bucket_cap_mb):
    """Its callbacks begin calls and wait for them, while backward begins those of other buckets."""
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_cap_mb)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    source = torch.Generator().manual_seed(RANK)
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=source)).square().mean()
        loss.backward()
        optimizer.step()
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    parts = each(lambda _: torch.zeros_like(flat))
    dist.all_gather(parts, flat)
    assert all(torch.equal(part, flat) for part in parts)


def test_join_with_uneven_inputs():
    """Ranks without inputs shadow the calls of the others, in another form."""
    torch.manual_seed(1)
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for _ in range(2 + RANK):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    with model.join():
        for _ in range(3 - RANK % 2):
            model(torch.ones(2, 8)).sum().backward()
    tensor = mine(1)
    dist.all_reduce(tensor)
    assert tensor.item() == TOTAL


def test_calls_begun_in_backward_are_not_awaited_at_its_end():
    """Another rank may begin its part of them only after this one has gone on."""
    other = dist.new_group(range(SIZE))
    begun, source = [], torch.ones(3, requires_grad=True)

    def begin(gradient):
        begun.append(dist.all_reduce(mine(3), async_op=True))
        return gradient

    def go_on():
        tensor = mine(1)
        dist.broadcast(tensor, 0, group=other)
        assert tensor.item() == 1

    if RANK == 0:
        source.register_hook(begin)
        source.sum().backward()
        go_on()
    else:
        go_on()
        begin(None)
    begun[0].wait()
    assert begun[0].result()[0].tolist() == [TOTAL] * 3


def test_calls_too_deep_in_callbacks_are_refused():
    said = []

    def again(future):
        try:
            return dist.all_reduce(mine(2), async_op=True).get_future().then(again).wait()
        except RuntimeError as error:
            said.append(str(error))
            return None

    dist.all_reduce(mine(2), async_op=True).get_future().then(again).wait()
    assert len(said) == 1 and "3 levels" in said[0]


def test_messages_that_a_future_and_a_thread_wait_for():
    """Each in its own thread, and MPI lets one thread at a time complete a message."""
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for number in range(400):
        got = torch.zeros(2000)
        works = [dist.irecv(got, before), dist.isend(torch.full((2000,), float(number)), following)]
        futures = [work.get_future() for work in works]
        for work in works:
            work.wait()
        assert (got == number).all()
        torch.futures.wait_all(futures)
