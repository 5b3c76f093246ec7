"""PyTorch on a real device: its tensors, its streams, page-locked tensors, and wrapped modules."""

import numpy
import pytest
from mpi4py import MPI

from tests.support.cases import SIZE
from tests.support.torch_training import STRATEGIES, batches, loss_of, mine, network, torch, wrap

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WORDS = (None, "ring", "native")


@pytest.fixture
def device(xp):
    """PyTorch's current device is CuPy's."""
    if not torch.cuda.is_available():
        pytest.skip("needs a PyTorch that is built for CUDA")
    number = xp.cuda.runtime.getDevice()
    with torch.cuda.device(number):
        yield torch.device("cuda", number)


@pytest.fixture(params=["default", "side"])
def stream(request, device):
    """PyTorch's current stream, of which CuPy is not told."""
    chosen = torch.cuda.default_stream() if request.param == "default" else torch.cuda.Stream()
    with torch.cuda.stream(chosen):
        yield chosen


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("word", WORDS)
def test_tensors(mode, comm, device, stream, dtype, word):
    if word == "native" and dtype in TYPES[2:]:
        word = None  # MPI has no such type
    for call in (lambda x: comm.Allreduce(MPI.IN_PLACE, x, algorithm=word),
                 lambda x: comm.Iallreduce(MPI.IN_PLACE, x, algorithm=word).Wait()):  # fmt: skip
        data = torch.zeros(999, device=device, dtype=dtype)
        torch.cuda._sleep(50_000_000)  # its values come late
        data += 1
        call(data)
        assert (data == SIZE).all()


@pytest.mark.parametrize("word", WORDS)
def test_page_locked_tensors_are_the_hosts(mode, comm, device, word):
    data = torch.ones(99).pin_memory()
    comm.Allreduce(MPI.IN_PLACE, data, algorithm=word)
    assert (data == SIZE).all()


def losses(comm, device, strategy, overlap):
    torch.manual_seed(0)
    model = wrap(network(0).to(device), comm, strategy, optimizer=torch.optim.AdamW, lr=0.01, bucket_bytes=200, overlap=overlap)
    found = []
    for features, labels in batches():
        model.zero_grad()
        with model.step():
            loss = loss_of(model, mine(features).to(device), mine(labels).to(device))
            loss.backward()
            model.optimizer.step()
        found.append(loss.item())
    return comm.allreduce(numpy.array(found)) / SIZE


@pytest.mark.parametrize("overlap", ["none", "gradients", "all"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_of_a_module_are_those_of_the_host(mode, comm, device, stream, strategy, overlap):
    wanted = losses(comm, torch.device("cpu"), strategy, overlap)
    numpy.testing.assert_allclose(losses(comm, device, strategy, overlap), wanted, atol=1e-4)
