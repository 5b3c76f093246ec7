"""Trainings by PyTorch's own means on the backend, each with the losses of one process: python -m … NAME [NAME …].

The same model and rows everywhere: a rank takes its part of each batch. Under SLURM the file $DONE says that all went well.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch

ROWS, STEPS, WIDTH = 12, 6, 8


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 48), torch.nn.Tanh(), torch.nn.Linear(48, 24), torch.nn.Tanh(),
                               torch.nn.Linear(24, 4)).double()  # fmt: skip


def batches():
    source = torch.Generator().manual_seed(3)
    rows = ROWS * dist.get_world_size()
    return [(torch.randn(rows, WIDTH, generator=source).double(), torch.randn(rows, 4, generator=source).double())
            for _ in range(STEPS)]  # fmt: skip


def mine(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def train(model, optimizer, part=mine):
    """Mean losses over the ranks."""
    losses = []
    for features, labels in batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(part(features)), part(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses


def alone():
    model = network()
    return train(model, torch.optim.Adam(model.parameters(), 0.01), part=lambda tensor: tensor)


def adam(model):
    return torch.optim.Adam(model.parameters(), 0.01)


def parallel(**options):
    model = DistributedDataParallel(network(), **options)
    return train(model, adam(model))


def ddp():
    return parallel()


def ddp_small_buckets():
    return parallel(bucket_cap_mb=0.001, gradient_as_bucket_view=True)


def ddp_static_graph():
    return parallel(static_graph=True, bucket_cap_mb=0.001)


def ddp_unused():
    return parallel(find_unused_parameters=True)


def ddp_hook():
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return train(model, adam(model))


def ddp_fp16_hook():
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model, adam(model))


def ddp_powersgd():
    """Its callbacks begin collectives and wait for them."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, adam(model))


def zero():
    model = DistributedDataParallel(network())
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


def fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    return train(model, adam(model))


def fsdp2(reshard=True):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = network(), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return train(model, adam(model))


def fsdp2_kept():
    return fsdp2(reshard=False)


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = network(), init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, adam(model), part=lambda tensor: tensor)


def checkpoint():
    """Saved by all ranks, loaded by all."""
    import torch.distributed.checkpoint as saved

    place = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(place)
    model = network()
    losses = train(DistributedDataParallel(model), adam(model))
    saved.save(model.state_dict(), checkpoint_id=place[0])
    other = network()
    state = other.state_dict()
    saved.load(state, checkpoint_id=place[0])
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    return losses


#: how far the losses may be from those of one process: hooks that compress, and ZeRO with unequal shards, round
CLOSE = {"ddp_fp16_hook": 2e-2, "ddp_powersgd": 0.3}
ALL = [ddp, ddp_small_buckets, ddp_static_graph, ddp_unused, ddp_hook, ddp_fp16_hook, ddp_powersgd, zero, fsdp, fsdp2,
       fsdp2_kept, dtensor, checkpoint]  # fmt: skip


def main(names):
    """Run these, or all."""
    mpicoll.torch.init()
    torch.set_num_threads(1)
    expected, size = alone(), dist.get_world_size()
    for training in ALL:
        if names and training.__name__ not in names:
            continue
        losses = training()
        torch.testing.assert_close(losses, expected, rtol=CLOSE.get(training.__name__, 1e-6), atol=1e-9, msg=lambda text: (
            f"{training.__name__}: {text}\n{losses}\n{expected}"))  # fmt: skip
        if dist.get_rank() == 0:
            print(f"{training.__name__} on {size} ranks", flush=True)
    dist.barrier()
    if dist.get_rank() == 0 and "DONE" in os.environ:
        Path(os.environ["DONE"]).write_text("".join(f"{name} on {size} ranks\n" for name in names))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
