"""The backend "mpicoll" of torch.distributed: ``init_process_group("mpicoll")``; imported, it registers itself.

`registration` tells PyTorch of the backend, and MPI is started by the first process group alone: workers that load data
import the program again. `rendezvous` has rank, size and store from MPI. `process_group` serves PyTorch's calls by those of
`Communicator`, with `memory` and `ops`; asynchronous ones are begun by `levels` and return `works` with
`futures`.

May import: errors, buffers, communicator, execute, launch, support.
"""

from .registration import init, register

__all__ = ["init"]

register()
