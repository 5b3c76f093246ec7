"""Trainings by local steps, and all their ranks simulated in one process.

    mpirun --with-ft ulfm -n 3 python -m tests.support.local_steps RANK STEP OPTIONS

trains elastically; the rank kills itself before it begins the exchange that is due after that inner step. The others print
whether they have what the simulation of such a training has.
"""

import json
import os
import signal
import sys

import numpy
from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.schedule import bounds
from mpicoll.train import Adam, Sampler, Trainer, mlp
from mpicoll.train.parallel.outer_steps import OuterSteps
from tests.support.training import WIDTHS, blobs

DATA = blobs(76, WIDTHS[0])
BATCH = 13


def trained(comm=MPI.COMM_WORLD, optimizer=Adam, steps=17, length={}, strategy="diloco", widths=WIDTHS, **options):
    options = {"precision": "float64", **options}
    trainer = Trainer(mlp(widths, seed=comm.Get_rank(), dtype="float64"), optimizer(), comm, strategy, **options)
    trainer.fit(DATA, steps=steps, batch_size=BATCH, seed=3, **length)
    return trainer


def flat(trainer):
    return numpy.concatenate([array.reshape(-1) for array in trainer.params.values()])


class Replica:
    """What one rank has."""

    def __init__(self, optimizer):
        self.model = mlp(WIDTHS, seed=0, dtype="float64")
        self.optimizer = optimizer()
        self.sent = {}

    def step(self, share):
        features, labels = DATA.take(share)
        loss = self.model.learn(features, labels, max(1, len(labels)))
        self.optimizer.update(self.model.parameters, self.model.gradients)
        return loss * len(labels), len(labels)


def simulated(size, steps, inner_steps, fragments, overlap, optimizer=Adam, lr=0.7, momentum=0.9, death=None):
    """Losses and common parameters.

    death: (rank, step) of one that dies before the exchange due then; until that is awaited the others take the samples that
    were theirs before. What it has told of its losses is lost with it, back to the last step of an epoch.
    """
    replicas = [Replica(optimizer) for _ in range(size)]
    common = replicas[0].model.parameters.copy()
    velocity = numpy.zeros_like(common)
    delay = 0 if overlap == "none" else max(1, inner_steps // (2 * fragments))
    edges = bounds(len(common), fragments)
    begins = [(number + 1) * inner_steps // fragments for number in range(fragments)]
    alive = list(range(size))
    shared = list(range(size))  # by whom samples are shared

    def begin(number):
        part = slice(*edges[number:number + 2])
        for rank in alive:
            replicas[rank].sent[number] = replicas[rank].model.parameters[part].copy()

    def finish(number):
        part = slice(*edges[number:number + 2])
        change = common[part] - sum(replicas[rank].sent[number] for rank in alive) / len(alive)
        velocity[part] = momentum * velocity[part] + change
        common[part] -= lr * (change + momentum * velocity[part])
        for rank in alive:
            replicas[rank].model.parameters[part] += common[part] - replicas[rank].sent.pop(number)

    sums = []  # of each step: loss times samples, samples, by rank
    epoch = len(Sampler(61, BATCH, 3))
    batches = Sampler(61, BATCH, 3).epochs(steps)
    for step, batch in enumerate((batch for epoch in batches for batch in epoch), 1):
        shares = {rank: Sampler(61, BATCH, 3, shared.index(rank), len(shared)).share(batch) for rank in alive}
        sums.append({rank: replicas[rank].step(share) for rank, share in shares.items()})
        for due, act in ((step - delay, finish), (step, begin)) if delay else ((step, begin), (step, finish)):
            for number in range(fragments):
                if due > 0 and (due - begins[number]) % inner_steps == 0:
                    if death and act is begin and step == death[1]:
                        alive.remove(death[0])
                    act(number)
        if death and step == death[1] + delay:
            shared = list(alive)
            for told in sums[(step - 1) // epoch * epoch:]:
                told.pop(death[0], None)
    under_way = list(replicas[alive[0]].sent)
    if delay or fragments > 1 or steps % inner_steps:
        for act, numbers in ((finish, under_way), (begin, range(fragments)), (finish, range(fragments))):
            for number in numbers:
                act(number)
    losses = [sum(loss for loss, _ in told.values()) / sum(rows for _, rows in told.values()) for told in sums]
    return losses, common


def main():
    install_abort_hook()
    rank, step, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    comm = Communicator(MPI.COMM_WORLD)
    size = comm.Get_size()
    real = OuterSteps._begin

    def begin(outer, fragment, when):
        if comm.rank == rank and when == step:
            os.kill(os.getpid(), signal.SIGKILL)
        real(outer, fragment, when)

    OuterSteps._begin = begin
    trainer = trained(comm, steps=24, elastic=True, **options)
    losses, common = simulated(size, 24, death=(rank, step), **options)
    left = trainer.comm.Get_size()
    recoveries = [recovery["step"] for recovery in trainer.report()["recoveries"]]
    differences = [abs(one - other) for one, other in zip(trainer.losses, losses)]
    worst = max(*differences, abs(flat(trainer) - common).max())
    good = len(trainer.losses) == 24 and left == size - 1 and worst < 1e-9
    print("as simulated" if good else f"{left} ranks, {worst}, {differences}", recoveries, flush=True)


if __name__ == "__main__":
    main()
