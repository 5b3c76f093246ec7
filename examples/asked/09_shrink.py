"""Shrink a process group when a rank has died, and go on (pytorch #164529)."""
import os
import signal

import torch
import torch.distributed as dist

import mpicoll.torch

mpicoll.torch.init("mpicoll")
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(1000))
except mpicoll.RankFailure as failure:
    group = dist.shrink_group(list(failure.ranks), shrink_flags=1)  # 1: end the calls under way
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    if dist.get_rank(group) == 0:
        print(f"{failure.ranks} died; {dist.get_world_size(group)} ranks go on, sum {x[0]:g}")
