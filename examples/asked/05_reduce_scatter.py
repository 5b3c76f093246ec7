"""A reduce_scatter that sends no more than one, and AVG (pytorch PR #149869, #162338)."""
import torch
import torch.distributed as dist

import mpicoll.torch


def written() -> int:  # bytes that this process has written, to sockets too
    return int(open("/proc/self/io").read().split()[3])


for backend in "gloo", "mpicoll":
    mpicoll.torch.init(backend)
    size, x = dist.get_world_size(), torch.arange(3 << 18, dtype=torch.float32)
    part, before = torch.empty(len(x) // size, dtype=x.dtype), written()
    dist.reduce_scatter(part, list(x.chunk(size)), op=dist.ReduceOp.AVG)
    sent = dist.group.WORLD.comm.sent[1] if backend == "mpicoll" else written() - before
    if dist.get_rank() == 0:
        print(f"{backend}: sent {sent / x.nbytes:.2f} of the vector per rank, average {part[1]:g}")
    dist.destroy_process_group()
