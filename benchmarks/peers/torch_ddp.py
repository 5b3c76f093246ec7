"""Step time of PyTorch's own data parallelism (gloo) and of mpicoll's wrapper, in one run.

    mpicoll cluster --hosts 4 --rate 200mbit --mpi mpich -- \\
        python -m benchmarks.peers.torch_ddp --link 200mbit --json F

Candidates: DistributedDataParallel with its default buckets and with buckets as small as ours; the
faster of the two with ZeroRedundancyOptimizer would be its ZeRO-1, so both are there as well; and
mpicoll's strategies. How: `torch_steps`.
"""

from functools import partial

import torch
from mpi4py import MPI
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from mpicoll import Communicator, install_abort_hook
from mpicoll.support.node import share_cores

from .gloo import Gloo
from .torch_steps import adamw, ours, parser, race, report, transformer

STRATEGIES = ("allreduce", "zero1", "zero2")


def main():
    """Calibrate, measure, print, write."""
    install_abort_hook()
    options = parser(__doc__.splitlines()[0]).parse_args()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    torch.set_num_threads(1)
    with Gloo(comm):
        facts, rows = race(comm, options, _candidates(comm, options))
    # the table compares with the first
    rows = sorted(rows[:2], key=lambda row: row["step_s"]) + rows[2:]
    report(comm, options, facts, rows)


def _candidates(comm, options):
    buckets = {"": {}, ", our buckets": {"bucket_cap_mb": options.bucket_bytes / (1 << 20)}}
    optimizers = {"": adamw, ", ZeroRedundancyOptimizer": _redundant}
    found = {
        f"DDP{label}{optimizer}": partial(_ddp, options, make, given)
        for optimizer, make in optimizers.items()
        for label, given in buckets.items()
    }
    return found | {
        f"mpicoll {strategy}": partial(ours, comm, strategy, options) for strategy in STRATEGIES
    }


def _redundant(parameters):
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)


def _ddp(options, make, given):
    model = DistributedDataParallel(transformer(options), gradient_as_bucket_view=True, **given)
    return model, make(model.parameters())


if __name__ == "__main__":
    main()
