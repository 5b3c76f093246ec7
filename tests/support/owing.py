"""A training with error feedback that goes on when ranks die, on ranks: python -m … STRATEGY FOLDER [ONE].

Gradients depend on samples alone, each of which is learnt once. Ranks write to the folder what their codes have lost: after
each step, counted since there are so many ranks (`after-RANKS-RANK-STEP`, the rank in COMM_WORLD), where they begin to go on
(`taken-RANK`), and at the end (`end-RANK`). With ONE there is a rank on each node, until ranks have died: those that are left
share one, and send no codes. Where no rank owns a part, none sums gradients before all have the copies of residuals.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy
from mpi4py import MPI

from mpicoll.train import SGD, Dataset, Trainer, elastic
from mpicoll.train.parallel import fitting
from mpicoll.train.parallel.backup import Backup

STEPS, BATCH = 24, 12
SHAPE = (30, 21)
SIZE = SHAPE[0] * SHAPE[1]
CODES = "int4"
#: of each sample
GRADIENTS = numpy.random.default_rng(5).standard_normal((STEPS * BATCH, *SHAPE)).astype("f4")
#: of all steps together
TOTAL = GRADIENTS.astype("f8").sum(axis=0).reshape(-1) / BATCH


def learn(params, batch):
    """The mean gradient of some samples."""
    features, _ = batch
    return 0.0, [GRADIENTS[features[:, 0].astype(int)].mean(axis=0)]


def residuals_of(reducer):
    """What this rank adds to its gradients."""
    if reducer.feedback is not None:
        return reducer.feedback.plain()
    if reducer.remainder is not None and reducer.rank == 0:
        return reducer.remainder.values.copy()
    return numpy.zeros(SIZE, "f4")


def node_of(comm):
    """The ranks that share the node of this one."""
    return nullcontext(MPI.COMM_SELF if comm.Get_size() == MPI.COMM_WORLD.Get_size() else comm)


def main(strategy, folder, one=""):
    record, wait, take_over = Backup.record, Backup.wait, elastic._take_over_residuals
    rank = MPI.COMM_WORLD.Get_rank()
    if one:
        fitting.ranks_of_node = node_of

    def record_and_write(backup, *arguments):
        record(backup, *arguments)
        path = Path(folder, f"after-{backup.size}-{rank}-{backup.newest}.npz")
        if backup.reducer.feedback is not None:
            numpy.savez(path, lost=backup.reducer.feedback.plain())

    def take_over_and_write(source, plan, updates, new):
        take_over(source, plan, updates, new)
        numpy.savez(Path(folder, f"taken-{rank}.npz"), residuals=residuals_of(new.reducer), newest=source.newest,
                    held=source._has_come, holders=source.holders, generation=plan.generation)  # fmt: skip

    def wait_for_all(backup):
        wait(backup)
        backup.reducer.comm.Barrier()

    Backup.record, elastic._take_over_residuals = record_and_write, take_over_and_write
    if strategy == "allreduce":
        Backup.wait = wait_for_all
    numbers = numpy.arange(STEPS * BATCH)
    features, labels = numbers[:, None].astype("f4"), numpy.zeros_like(numbers)
    data = Dataset(features, labels, features[:0], labels[:0])
    trainer = Trainer(learn, SGD(1.0), MPI.COMM_WORLD, strategy, params=[numpy.zeros(SHAPE, "f4")], compression=CODES,
                      error_feedback=True, algorithm=None if one else "pairwise", elastic=True)  # fmt: skip
    trainer.fit(data, steps=STEPS, batch_size=BATCH, seed=3)
    weights, = trainer.params.values()
    report = trainer.report()
    numpy.savez(Path(folder, f"end-{rank}.npz"), weights=weights, lost=residuals_of(trainer.strategy.reducer),
                copy_bytes_per_step=report["copy_bytes_per_step"], copy_bytes_held=report["copy_bytes_held"])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
