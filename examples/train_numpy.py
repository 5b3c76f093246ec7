"""Train a NumPy model of one's own on all ranks, with checkpoints: started again, it goes on where it was.

    mpiexec -n 4 python examples/train_numpy.py

On a cluster: `mpicoll slurm new train` writes the job, whose last line becomes `run python examples/train_numpy.py`.
Any function of (parameters, batch) that gives the mean loss and the gradients will do: here softmax regression.
"""

from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpicoll
from mpicoll.train import Adam, Trainer, digits

Array = NDArray[np.float64]


def softmax_regression(params: dict[str, Array], batch: tuple[Array, Array]) -> tuple[float, dict[str, Array]]:
    """The mean loss of a batch, and the gradients by the names of the parameters."""
    features, labels = batch
    scores = features @ params["weights"] + params["bias"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    count = len(labels)
    loss = -float(np.log(chances[np.arange(count), labels]).mean())
    chances[np.arange(count), labels] -= 1
    return loss, {"weights": features.T @ chances / count, "bias": chances.mean(axis=0)}


mpicoll.install_abort_hook()  # a rank that fails ends the job
comm = mpicoll.Communicator(MPI.COMM_WORLD)
params = {"weights": np.zeros((64, 10)), "bias": np.zeros(10)}
trainer = Trainer(softmax_regression, Adam(1e-2), comm, params=params, strategy="zero1")
data = digits()
trainer.fit(data, epochs=8, batch_size=64, seed=0, checkpoint=Path("checkpoints"), resume=True)

if comm.rank == 0:
    print(f"{comm.size} ranks: loss {trainer.losses[-1]:.3f}")
