"""Frameworks that train on torch.distributed have the same losses on mpicoll as on gloo. Those not installed are skipped.

    pip install accelerate transformers lightning torchmetrics deepspeed
"""

import json
import socket

import pytest

from tests.support.each import ALL, EACH
from tests.support.launching import mpiexec
from tests.support.torch_backend import require_torch

#: what needs nothing but PyTorch; the others are run where they are installed
CLIENTS = ("fsdp", "fsdp2", "tensor_parallel", "pipelining", "checkpoints", "join", "accelerate", "transformers", "lightning",
           "torchmetrics", "deepspeed", "deepspeed3")  # fmt: skip
RANKS = 2


@EACH
@pytest.mark.skipif(not ALL, reason="installs frameworks and takes long: MPICOLL_TEST_ALL=1 runs it")
@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_losses_are_those_on_gloo(installation, client, tmp_path):
    require_torch(installation)
    found = {}
    for served in ("gloo", ""):
        file = tmp_path / f"losses{served}"
        mpiexec(installation, RANKS, client, file, module="tests.support.torch_backend.clients", MPICOLL_TORCH_AS=served,
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))  # fmt: skip
        found[served] = json.loads(file.read_text())
        if found[served]["missing"]:
            pytest.skip(found[served]["missing"])
    assert (found["gloo"]["backend"], found[""]["backend"]) == ("mpicoll", "gloo")
    assert found["gloo"]["losses"] == pytest.approx(found[""]["losses"], rel=1e-5, abs=1e-6)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
