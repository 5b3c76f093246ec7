"""Trainings that are short, and what they are compared with: one process."""

import argparse
import zlib

import numpy
import pytest
from mpi4py import MPI

from mpicoll.cli import train as command
from mpicoll.errors import ArgumentError
from mpicoll.train import SGD, Adam, Dataset, Trainer, mlp
from tests.support.cases import WORLD

STRATEGIES = ("parameter_server", "allreduce", "zero1", "zero2")
WIDTHS = [7, 12, 9, 4]


def raises(text, call, *arguments, **options):
    with pytest.raises(ArgumentError, match=text):
        call(*arguments, **options)
    WORLD.Barrier()  # all ranks got here: nobody waits inside


def blobs(samples=103, width=12, classes=4, seed=0):
    """Clusters that a small network tells apart."""
    random = numpy.random.default_rng(seed)
    labels = random.integers(0, classes, samples)
    features = 3 * random.standard_normal((classes, width))[labels] + random.standard_normal((samples, width))
    return Dataset.split(features, labels, seed)


def train(comm, strategy="allreduce", optimizer=SGD, precision="float64", dataset=None, options={}, **length):
    model = mlp([12, 16, 4], seed=comm.Get_rank(), dtype="float64")  # seeds differ: rank 0's parameters must win
    trainer = Trainer(model, optimizer(), comm, strategy, precision=precision, **options)
    trainer.fit(dataset or blobs(), **{"epochs": 3, "batch_size": 20, "seed": 4, **length})
    return trainer


def fitted(comm, data, strategy="allreduce", optimizer=Adam, length={}, **options):
    """61 training samples in batches of 13: the last one holds 9. Seeds differ: rank 0's parameters must win."""
    model = mlp(WIDTHS, seed=comm.Get_rank(), dtype="float64")
    trainer = Trainer(model, optimizer(), comm, strategy, **{"precision": "float64", **options})
    trainer.fit(data, **{"epochs": 2, "batch_size": 13, "seed": 3, **length})
    return trainer


def alone(data, **options):
    """Losses and parameters of one process, on all ranks."""
    trainer = fitted(MPI.COMM_SELF, data, **options)
    return WORLD.bcast((trainer.losses, trainer.state_dict()["parameters"]))


def train_command(*words):
    """Run `mpicoll train WORDS` in this process."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(words))


def same_bits(trainer):
    """The parameters, as one checksum, which must be that of all ranks."""
    sums = WORLD.allgather(zlib.crc32(b"".join(array.tobytes() for array in trainer.params.values())))
    assert len(set(sums)) == 1
    return sums[0]
