"""PyTorch's own training and allreduce on the backends mpicoll and gloo, in one run.

    mpicoll cluster --hosts 4 --rate 200mbit --mpi mpich -- \\
        python -m benchmarks.peers.torch_backend --link 200mbit --json F
    mpiexec -n 2 python -m benchmarks.peers.torch_backend --link 10gbit --json F

DistributedDataParallel (with buckets of --bucket-bytes, with which both are faster, and with its
own, which hold nearly the whole model), FSDP2 (each block of the transformer, then the rest) and
ZeroRedundancyOptimizer (small buckets): how, says `torch_steps`. allreduce: float32 from 4 B on,
calls that wait; the two alternate, inputs are written before each call.
"""

from functools import partial

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch  # noqa: F401 registers the backend
from mpicoll import Communicator, install_abort_hook
from mpicoll.measure import alternate, calls_per_time, repeats_for, statistics
from mpicoll.support.node import share_cores
from mpicoll.support.units import format_bytes, parse_bytes

from .gloo import Gloo, on_gloo
from .torch_steps import adamw, parser, race, report, transformer

BACKENDS = ("gloo", "mpicoll")
LEAST = 4
STEP = 4


def main():
    """Measure the calls, then the steps; print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    torch.set_num_threads(1)
    with Gloo(comm):
        groups = {name: dist.new_group(backend=name) for name in BACKENDS}
        calls = [
            _allreduce(comm, groups, nbytes, options.seconds) for nbytes in _sizes(options.most)
        ]
        facts, rows = race(comm, options, _candidates(groups, options))
    report(comm, options, facts, rows, base=on_gloo, allreduce=calls)


def _options():
    made = parser(__doc__.splitlines()[0])
    made.add_argument(
        "--most", type=parse_bytes, default=64 << 20, help="largest allreduce (default 64M)"
    )
    made.add_argument(
        "--seconds", type=float, default=1.5, help="for each size of the allreduce (default 1.5)"
    )
    return made.parse_args()


# Calls.


def _sizes(most):
    nbytes = LEAST
    while nbytes <= most:
        yield nbytes
        nbytes *= STEP


def _allreduce(comm, groups, nbytes, seconds):
    """{bytes, gloo, mpicoll: their `statistics`} of one size."""
    tensor = torch.empty(nbytes // 4)
    candidates = {
        name: partial(dist.all_reduce, tensor, group=group) for name, group in groups.items()
    }
    write = lambda name, repetition: tensor.fill_(1)
    once = {name: times[1] for name, times in alternate(comm, candidates, 2, write).items()}
    calls = calls_per_time(once)
    repeats = repeats_for(comm, candidates, seconds, write, calls=calls)
    times = alternate(comm, candidates, repeats, write, calls=calls)
    row = {"bytes": nbytes, **{name: statistics(found) for name, found in times.items()}}
    if comm.Get_rank() == 0:
        gloo, own = (row[name]["median_us"] for name in BACKENDS)
        print(
            f"{format_bytes(nbytes):>8} gloo {gloo:10.1f} us  mpicoll {own:10.1f} us "
            f" x{gloo / own:.2f}",
            flush=True,
        )
    return row


# Steps.


def _candidates(groups, options):
    ways = {
        "DDP": _ddp,
        "DDP as it comes": _ddp_as_it_comes,
        "FSDP2": _fsdp2,
        "ZeroRedundancyOptimizer": _redundant,
    }
    return {
        f"{way}, {name}": partial(make, group, options)
        for way, make in ways.items()
        for name, group in groups.items()
    }


def _distributed(group, options, **given):
    return DistributedDataParallel(
        transformer(options), process_group=group, gradient_as_bucket_view=True, **given
    )


def _small_buckets(options):
    return {"bucket_cap_mb": options.bucket_bytes / (1 << 20)}


def _ddp(group, options):
    model = _distributed(group, options, **_small_buckets(options))
    return model, adamw(model.parameters())


def _ddp_as_it_comes(group, options):
    model = _distributed(group, options)
    return model, adamw(model.parameters())


def _redundant(group, options):
    model = _distributed(group, options, **_small_buckets(options))
    return model, ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, process_group=group, lr=1e-3
    )


def _fsdp2(group, options):
    model = transformer(options)
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, adamw(model.parameters())


if __name__ == "__main__":
    main()
