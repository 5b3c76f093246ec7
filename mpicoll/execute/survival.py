"""Ranks that died: whether the others can go on here, and what this process knows of the dead.

MPI calls it user-level failure mitigation (ULFM): a call that waits for a dead rank raises, `Revoke` wakes whoever waits
for ranks that have stopped waiting, `Shrink` makes a communicator of the living, `Agree` comes to one answer on all of them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from mpi4py import MPI

from ..errors import RankFailure
from ..support.checks import ranks_text
from ..support.node import failed_ranks, ranks_within
from ..support.quirks import applies, loaded

#: by which mpirun tells each rank that it was given --with-ft ulfm
_ENABLED, _HEARTBEATS = "OMPI_MCA_mpi_ft_enable", "OMPI_MCA_mpi_ft_detector"
#: by which the rank that hears no more heartbeats of another tells all. quirk: heartbeat-tells-one
_PROPAGATOR = "OMPI_MCA_mpi_ft_propagator_with_rbcast"
#: collectives over several hosts with several ranks each. quirk: han-ignores-deaths
_HAN, _COMPONENTS = "han", "OMPI_MCA_coll"
_TRUE = ("1", "true", "yes")
#: seconds for which a rank that others have woken waits to learn who died
_PATIENCE = 1.0
#: seconds for which a rank that ends waits for the others to end
_LEAVING = 2.0
#: OMPI_MPI_STATE_FINALIZE_COMPLETED. quirk: finalize-waits-for-the-dead
_FINALIZED = 5
#: ranks in the world of which this process knows that they are dead
DEAD: set[int] = set()

_CLASSES = {getattr(MPI, name, None) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")} - {None}
#: of errors that say no more than that something went wrong. quirk: death-noticed-late
_VAGUE = {MPI.ERR_IN_STATUS, MPI.ERR_PENDING, MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN}


@cache
def refusal() -> str:
    """Why lost ranks cannot be survived here, and what to do; or ""."""
    if applies("death-ends-the-job"):
        return (f"{loaded()[0]} ends the job when a rank dies: use Open MPI, started by mpirun --with-ft ulfm, or go on from a "
                "checkpoint in a new job")  # fmt: skip
    if not _set(_ENABLED):
        return "Open MPI ends the job when a rank dies unless it is told otherwise: start it by mpirun --with-ft ulfm"
    if _set(_HEARTBEATS) and not _set(_PROPAGATOR):
        return ("with heartbeats alone one rank learns that another is lost, and the others wait for ever: start it by mpirun "
                "--with-ft ulfm --mca mpi_ft_propagator_with_rbcast true, too")  # fmt: skip
    components = os.environ.get(_COMPONENTS, "^")  # those to use, or, after ^, not to use
    if _several_hosts() and components.startswith("^") != (_HAN in components.lstrip("^").split(",")):
        return ("Open MPI's component coll/han does not notice that ranks died, and returns wrong numbers: start it by mpirun "
                "--with-ft ulfm --mca coll ^han, too")  # fmt: skip
    return ""


def _several_hosts() -> bool:
    """Alike on all ranks."""
    here, everywhere = (os.environ.get(f"OMPI_COMM_WORLD_{name}SIZE", "1") for name in ("LOCAL_", ""))
    return here != everywhere


def _set(name: str) -> bool:
    return os.environ.get(name, "").lower() in _TRUE


@cache
def survivable() -> bool:
    """Whether ranks that live can go on."""
    return not refusal()


def tells_of_death(error: BaseException) -> bool:
    """Whether MPI raised it because a rank died, or because another rank has noticed that."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in _CLASSES


def may_tell_of_death(error: BaseException) -> bool:
    """Whether it may have been raised for that.

    Several requests fail with a class of their own, memory cannot be mapped, and objects of the dead come in part.
    """
    if isinstance(error, MPI.Exception):
        return tells_of_death(error) or error.Get_error_class() in _VAGUE
    return isinstance(error, (OSError, EOFError)) or type(error).__name__ == "UnpicklingError"  # nothing here imports that


def suspected(error: BaseException) -> bool:
    """Whether the living can go on, and an error may have been raised because a rank died."""
    return survivable() and may_tell_of_death(error)


def behind(error: BaseException, comm: MPI.Comm) -> bool:
    """Whether a death is behind the error of a call on comm; notes the dead of whom MPI knows."""
    if not suspected(error):
        return False
    dead, world = failed_ranks_soon(comm), ranks_within(comm, MPI.COMM_WORLD)
    DEAD.update(world[rank] for rank in dead)
    return bool(dead) or tells_of_death(error)


def cause_of(error: Exception) -> Exception:
    """What MPI said of it, where an error of ours says more."""
    return error.__cause__ if isinstance(error.__cause__, MPI.Exception) else error


@contextmanager
def making(comm: MPI.Comm) -> Iterator[None]:
    """What is needed of `comm` is made. Where a rank dies meanwhile the others leave it, too, with RankFailure."""
    try:
        yield
    except Exception as error:
        if not behind(cause_of(error), comm):
            raise
        ranks = tuple(failed_ranks(comm))
        comm.Revoke()
        who = f"{ranks_text(ranks)} died" if ranks else "a rank died, which is not known here yet,"
        raise RankFailure(
            f"rank {comm.Get_rank()}: {who} while a Communicator was made. The other ranks can go on with "
            "mpicoll.Communicator(comm.Shrink()), where comm is what it was made of, called by all that live", ranks
        ) from error  # fmt: skip


def deaths() -> int:
    """How many ranks this process knows to be dead."""
    return len(DEAD)


def lowest_alive() -> int:
    """The lowest rank in the world of those that live, as far as this process knows: what rank 0 writes, it writes."""
    return min(set(range(MPI.COMM_WORLD.Get_size())) - DEAD)


def failed_ranks_soon(comm: MPI.Comm) -> list[int]:
    """`failed_ranks`, waiting for a moment until there are any: the news of a death may come after that of a revocation."""
    until = time.monotonic() + _PATIENCE
    while not (ranks := failed_ranks(comm)) and time.monotonic() < until:
        MPI.COMM_SELF.Iprobe()  # MPI hears of deaths only while it is in a call that makes progress
        time.sleep(1e-3)
    return ranks


def note_missing(comm: MPI.Comm, parent: MPI.Comm) -> None:
    """Those of `parent` that are not in `comm`, which was made of the living, are dead. Local."""
    living = set(ranks_within(comm, MPI.COMM_WORLD))
    DEAD.update(rank for rank in ranks_within(parent, MPI.COMM_WORLD) if rank not in living)


def outnumbers(before: MPI.Comm, after: MPI.Comm) -> bool:
    """Whether those left are more than those lost, or as many with rank 0 among them: there is no second such part. Local.

    True without heartbeats: nothing else takes ranks that live for dead. With them a host that is cut off takes the others
    for dead, as they take it.
    """
    if not _set(_HEARTBEATS):
        return True
    left = ranks_within(after, before)
    return 2 * len(left) + (0 in left) > before.Get_size()


def leave() -> None:
    """At exit, where ranks died or send heartbeats: end without MPI_Finalize, which may then wait for ever.

    Together with the others, who would otherwise take this rank for another that died; but not for longer than a moment.
    Python goes on to its end, as it alone knows the exit status; then mpi4py would call MPI_Finalize, and is told that it was.
    """
    if MPI.Is_finalized() or not (DEAD or _set(_HEARTBEATS)):
        return
    together = threading.Thread(target=all_agree, args=(MPI.COMM_WORLD, True), daemon=True)
    together.start()
    together.join(_LEAVING)
    ctypes.c_int.in_dll(ctypes.CDLL(MPI.__file__), "ompi_mpi_state").value = _FINALIZED


def all_agree(comm: MPI.Comm, good: bool) -> bool:
    """Whether it is so on all ranks and none died meanwhile: the same answer on all that live. Works when revoked."""
    if not survivable():
        return good
    try:
        return bool(comm.Agree(int(good)))
    except MPI.Exception as error:
        if not tells_of_death(error):
            raise
        return False


if survivable():
    atexit.register(leave)  # before all that is registered later, and so after it
