"""Elastic training on MPI: go on when a rank dies (horovod #2682, #1907)."""
import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.train import Adam, Trainer, digits, mlp

comm = mpicoll.Communicator(MPI.COMM_WORLD)
trainer = Trainer(mlp([64, 32, 10]), Adam(1e-3), comm, strategy="zero1", elastic=True)
trainer.fit(digits(), epochs=2, batch_size=128, seed=0)
alone = Trainer(mlp([64, 32, 10]), Adam(1e-3), mpicoll.Communicator(MPI.COMM_SELF))
alone.fit(digits(), epochs=2, batch_size=128, seed=0)
if trainer.comm.rank == 0:
    print(f"began on {comm.size} ranks, ended on {trainer.comm.size}: {len(trainer.losses)} steps")
    same = np.allclose(trainer.losses, alone.losses, rtol=1e-5)
    print("losses equal those of one process, to rounding:", same)
