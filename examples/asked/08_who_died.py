"""The name of the dead rank, not "connection closed by peer" (pytorch #75512, torchrec #3560)."""
import os
import signal

import torch
import torch.distributed as dist

import mpicoll.torch

mpicoll.torch.init("mpicoll")
gloo = dist.new_group(backend="gloo")
dist.barrier(gloo)
if dist.get_rank() == 2:
    os.kill(os.getpid(), signal.SIGKILL)
for name, group in ("gloo", gloo), ("mpicoll", None):
    try:
        dist.all_reduce(torch.ones(1000), group=group)
    except RuntimeError as error:
        if dist.get_rank() == 0:
            print(f"{name}: {type(error).__name__} names rank 2: {'rank 2' in str(error).lower()}")
