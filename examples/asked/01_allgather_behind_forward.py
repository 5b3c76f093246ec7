"""Hide ZeRO's allgather of parameters behind the next forward (DeepSpeed #6876)."""
from mpi4py import MPI

import mpicoll
from mpicoll.train import Adam, Trainer, digits, mlp

comm = mpicoll.Communicator(MPI.COMM_WORLD)
for overlap in "none", "all":
    model = mlp([64, 256, 256, 10])
    trainer = Trainer(model, Adam(), comm, strategy="zero1", overlap=overlap, bucket_bytes=1 << 17)
    trainer.strategy.meter.tracing = True
    trainer.fit(digits(), epochs=1, batch_size=512, seed=0)
    events = [event for event in trainer.strategy.meter.events if event.kind in ("wait", "step")]
    if comm.rank == 0:
        print(f"overlap={overlap}, what the main thread waits for:")
        print("  " + ", ".join(event.name for event in events[:5]))
