"""The backend "mpicoll" of torch.distributed: ``init_process_group("mpicoll")``.

Importing this module registers it. `launcher` tells scripts their rank, `registration` tells
PyTorch of the backend, and MPI is started by the first process group alone: workers that load data
import the program again. `rendezvous` has rank, size and store from MPI. `process_group` serves
PyTorch's calls by those of `Communicator`, with `memory`, `ops` and `half`; `levels` begin them,
the asynchronous ones return `works` with `futures`. `hooks` compress the gradients of
DistributedDataParallel.
"""

from .hooks import compression_hook
from .launcher import tell_scripts
from .registration import init, register, serve_as

__all__ = ["compression_hook", "init", "serve_as"]

tell_scripts()
register()
