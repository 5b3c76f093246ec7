"""What trainings leave at the end of a program on ranks: python left_by_training.py OPTIONS, keywords of `Trainer` as JSON."""

import json
import sys

import numpy as np
from mpi4py import MPI

from mpicoll.train import SGD, Dataset, Trainer


def train(options):
    """Three steps; the trainer is garbage afterwards."""
    data = Dataset(np.ones((12, 1), "f4"), np.zeros(12, "i8"), np.ones((0, 1), "f4"), np.zeros(0, "i8"))

    def learn(params, batch):
        return 0.0, [np.ones_like(array) for array in params]

    params = [np.zeros((30, 20), "f4"), np.zeros(9, "f4")]
    trainer = Trainer(learn, SGD(0.1), MPI.COMM_WORLD, params=params, **options)
    trainer.fit(data, steps=3, batch_size=4)
    return trainer


if __name__ == "__main__":
    last = train(json.loads(sys.argv[1]))
    print("done", flush=True)
