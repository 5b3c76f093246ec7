"""DistributedDataParallel on MPI: a script for gloo in which one word has changed.

    mpiexec -n 4 python examples/pytorch_ddp.py

Rank, size and addresses come from MPI; neither torchrun nor MASTER_ADDR is needed.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch  # noqa: F401 from PyTorch 2.5 on it is found without this line

dist.init_process_group("mpicoll")  # was: "gloo"
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
truth = torch.randn(32, 4)
module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
model = DistributedDataParallel(module)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

source = torch.Generator().manual_seed(rank)  # samples of this rank
for step in range(100):
    features = torch.randn(64, 32, generator=source)
    loss = torch.nn.functional.mse_loss(model(features), features @ truth)
    optimizer.zero_grad()
    loss.backward()  # gradients are summed bucket by bucket while backward goes on
    optimizer.step()

mean = loss.detach() / size
dist.all_reduce(mean)
if rank == 0:
    print(f"{size} ranks: loss {mean.item():.3f}")
dist.destroy_process_group()
