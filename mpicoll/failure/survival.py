"""Ranks that died: whether the others can go on here, and what this process knows of the dead.

MPI calls it user-level failure mitigation (ULFM): a call that waits for a dead rank raises,
`Revoke` wakes ranks that wait for ranks which have stopped waiting, `Shrink` makes a communicator
of the living, `Agree` comes to one answer on all of them.
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

#: set for each rank by mpirun --with-ft ulfm
_ENABLED = "OMPI_MCA_mpi_ft_enable"
_HEARTBEATS = "OMPI_MCA_mpi_ft_detector"
#: the rank that hears no more heartbeats of another one tells all ranks. quirk: heartbeat-tells-one
_PROPAGATOR = "OMPI_MCA_mpi_ft_propagator_with_rbcast"
#: all pairs of ranks connect in MPI_Init. quirk: first-message-to-the-lost
_CONNECTED = "OMPI_MCA_mpi_preconnect_mpi"
#: collectives over several hosts with several ranks each. quirk: han-ignores-deaths
_HAN = "han"
_COMPONENTS = "OMPI_MCA_coll"
_TRUE = ("1", "true", "yes")
#: seconds for which a rank that was woken by others waits to learn which ranks died
_PATIENCE = 1.0
#: seconds for which a rank that ends waits for the others to end
_LEAVING = 2.0
#: OMPI_MPI_STATE_FINALIZE_COMPLETED. quirk: finalize-waits-for-the-dead
_FINALIZED = 5
#: ranks in COMM_WORLD of which this process knows that they are dead
DEAD: set[int] = set()

#: classes of errors that a death raises, as far as this MPI has them
_CLASSES = {
    getattr(MPI, name)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    if hasattr(MPI, name)
}
#: classes of errors that say no more than that something failed. quirk: death-noticed-late
_VAGUE = {MPI.ERR_IN_STATUS, MPI.ERR_PENDING, MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN}


@cache
def refusal() -> str:
    """Why lost ranks cannot be survived here, and what to do; or ""."""
    if applies("death-ends-the-job"):
        return (
            f"{loaded()[0]} ends the job when a rank dies: use Open MPI, started by mpirun "
            "--with-ft ulfm, or go on from a checkpoint in a new job"
        )
    if not _set(_ENABLED):
        return (
            "Open MPI ends the job when a rank dies unless it is told otherwise: start it by "
            "mpirun --with-ft ulfm"
        )
    if _set(_HEARTBEATS) and not _set(_PROPAGATOR):
        return (
            "with heartbeats alone one rank learns that another is lost, and the others wait for "
            "ever: start it by mpirun --with-ft ulfm --mca mpi_ft_propagator_with_rbcast true, too"
        )
    if _set(_HEARTBEATS) and _several_hosts() and not _set(_CONNECTED):
        return (
            "a first message to a rank of a host that was cut off waits for ever: start it by "
            "mpirun --with-ft ulfm --mca mpi_preconnect_mpi true, too"
        )
    components = os.environ.get(_COMPONENTS, "^")  # those to use, or, after ^, not to use
    is_han_listed = _HAN in components.lstrip("^").split(",")
    if _several_hosts() and components.startswith("^") != is_han_listed:
        return (
            "Open MPI's component coll/han does not notice that ranks died, and returns wrong "
            "numbers: start it by mpirun --with-ft ulfm --mca coll ^han, too"
        )
    return ""


def _several_hosts() -> bool:
    """Whether the job has several hosts; the same on all ranks."""
    on_host = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    return on_host != os.environ.get("OMPI_COMM_WORLD_SIZE", "1")


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

    Several requests fail with a class of their own, memory cannot be mapped, and objects from dead
    ranks are incomplete.
    """
    if isinstance(error, MPI.Exception):
        return tells_of_death(error) or error.Get_error_class() in _VAGUE
    # by name: nothing here imports pickle
    is_unpickling = type(error).__name__ == "UnpicklingError"
    return isinstance(error, (OSError, EOFError)) or is_unpickling


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
    """MPI's own error, where an error of ours was raised from it."""
    return error.__cause__ if isinstance(error.__cause__, MPI.Exception) else error


@contextmanager
def making(comm: MPI.Comm) -> Iterator[None]:
    """Make something of `comm`; where a rank dies meanwhile all ranks leave with RankFailure."""
    try:
        yield
    except Exception as error:
        if not behind(cause_of(error), comm):
            raise
        ranks = tuple(failed_ranks(comm))
        comm.Revoke()
        who = f"{ranks_text(ranks)} died" if ranks else "a rank died, which is not known here yet,"
        raise RankFailure(
            f"rank {comm.Get_rank()}: {who} while a Communicator was made. The other ranks can go "
            "on with mpicoll.Communicator(comm.Shrink()), where comm is what it was made of, "
            "called by all that live", ranks
        ) from error  # fmt: skip


def deaths() -> int:
    """How many ranks this process knows to be dead."""
    return len(DEAD)


def lowest_alive() -> int:
    """The lowest rank in COMM_WORLD that lives, as far as known here: it writes for rank 0."""
    return min(set(range(MPI.COMM_WORLD.Get_size())) - DEAD)


def failed_ranks_soon(comm: MPI.Comm) -> list[int]:
    """`failed_ranks`, after a short wait if there are none.

    The news of a death may come after that of a revocation.
    """
    until = time.monotonic() + _PATIENCE
    while not (ranks := failed_ranks(comm)) and time.monotonic() < until:
        MPI.COMM_SELF.Iprobe()  # MPI hears of deaths only while it is in a call that makes progress
        time.sleep(1e-3)
    return ranks


def note_missing(comm: MPI.Comm, parent: MPI.Comm) -> None:
    """Note as dead the ranks of `parent` that are not in `comm`, made of the living. Local."""
    living = set(ranks_within(comm, MPI.COMM_WORLD))
    DEAD.update(rank for rank in ranks_within(parent, MPI.COMM_WORLD) if rank not in living)


def outnumbers(before: MPI.Comm, after: MPI.Comm) -> bool:
    """Whether the ranks left are the majority, or one half with rank 0 among them. Local.

    Then there is no second such part. True without heartbeats: only with them do ranks that live
    count as dead, when a host is cut off: each part then takes the other for dead.
    """
    if not _set(_HEARTBEATS):
        return True
    left = ranks_within(after, before)
    return 2 * len(left) + (0 in left) > before.Get_size()


def leave() -> None:
    """At exit, where ranks died or send heartbeats: end without MPI_Finalize.

    Open MPI may wait in it for ever. The rank first waits a short time for the other ranks, which
    would otherwise take it for dead. Python goes on to its end, as it alone knows the exit status;
    then mpi4py would call MPI_Finalize, but finds MPI finalized.
    """
    if MPI.Is_finalized() or not (DEAD or _set(_HEARTBEATS)):
        return
    together = threading.Thread(target=all_agree, args=(MPI.COMM_WORLD, True), daemon=True)
    together.start()
    together.join(_LEAVING)
    ctypes.c_int.in_dll(ctypes.CDLL(MPI.__file__), "ompi_mpi_state").value = _FINALIZED


def all_agree(comm: MPI.Comm, good: bool) -> bool:
    """Whether `good` is true on all ranks and none died meanwhile.

    The same answer on all ranks that live. Works on a revoked communicator.
    """
    if not survivable():
        return good
    try:
        return bool(comm.Agree(int(good)))
    except MPI.Exception as error:
        if not tells_of_death(error):
            raise
        return False


if survivable():
    atexit.register(leave)  # registered first, so called last
