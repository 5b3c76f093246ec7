"""Ranks, store and communicators of process groups, from MPI."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from mpi4py import MPI

from ..communicator import Communicator
from ..errors import LaunchError, RankFailure
from ..execute import Context
from ..launch import check_launch, install_abort_hook
from ..support import settings

#: the communicator of the default process group, of which all others are parts; empty without it
_WORLD: list[Communicator] = []


def meet(
    url: str, timeout: timedelta = timedelta(minutes=5), **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """(store, rank, size): a rendezvous for PyTorch, by the scheme "mpi". Collective."""
    _check_world()
    rank = MPI.COMM_WORLD.Get_rank()
    size = MPI.COMM_WORLD.Get_size()
    query = parse_qs(urlsplit(url).query)
    for name, value in (("rank", rank), ("world_size", size)):
        passed = int(query.get(name, [value])[0])
        if passed != value:
            raise LaunchError(
                f"init_process_group was given {name}={passed}, MPI says {value}: leave it out"
            )
    world = Communicator(MPI.COMM_WORLD)
    host = socket.gethostname()
    store = None
    if rank == 0:
        store = torch.distributed.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
    host, port = world.bcast((host, store.port) if store is not None else None)
    _tell_scripts(world, host, port)
    yield store or torch.distributed.TCPStore(host, port, size, False, timeout), rank, size


def _check_world() -> None:
    """Raise LaunchError unless MPI's world has as many ranks as the environment tells PyTorch.

    With torchrun each process is the only rank of its own world. Local, as are all checks before a
    Communicator of the world is made: for that each rank would wait for ranks that do not come.
    """
    check_launch()
    size = MPI.COMM_WORLD.Get_size()
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdigit() and int(started) != size:
        source = "torchrun started" if "TORCHELASTIC_RUN_ID" in os.environ else "WORLD_SIZE says"
        raise LaunchError(
            f"{source} {started} processes, but MPI's world has {size} here: start the script by "
            f'MPI alone, "mpiexec -n {started} python script.py" or "srun python script.py", '
            "without torchrun and without WORLD_SIZE"
        )


def _tell_scripts(world: MPI.Intracomm, host: str, port: int) -> None:
    """Set torchrun's variables, for scripts that read the environment."""
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    values = {
        "RANK": world.Get_rank(),
        "WORLD_SIZE": world.Get_size(),
        "LOCAL_RANK": node.Get_rank(),
        "LOCAL_WORLD_SIZE": node.Get_size(),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    node.Free()
    for name, value in values.items():
        os.environ.setdefault(name, str(value))


def communicator_of(options: Any) -> Communicator:
    """The communicator of a process group; its ranks call it. options: as PyTorch creates it."""
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        comm = _default(options)
    elif _WORLD:
        comm = part_of(_WORLD[0], ranks)
    else:
        install_abort_hook()
        comm = part_of(MPI.COMM_WORLD, _world_ranks(options))
    if comm.Get_rank() != options.group_rank:
        raise _no_such_rank(options, comm)
    return Communicator(comm, timeout=seconds_of(options.timeout))


def seconds_of(timeout: timedelta) -> float:
    """The timeout of a group's calls in seconds, or MPICOLL_TIMEOUT if that is less."""
    seconds = timeout.total_seconds()
    return min(seconds, settings.timeout() or seconds)


def remember(comm: Communicator) -> None:
    """Make it the communicator of the default process group."""
    _WORLD[:] = [comm]


def forget(comm: Communicator) -> bool:
    """Note that the group of this communicator has ended; whether it was the default group."""
    was_default = bool(_WORLD) and _WORLD[0] == comm
    if was_default:
        _WORLD.clear()
    return was_default


def _default(options: Any) -> Communicator:
    """All ranks of MPI's world, in PyTorch's order."""
    _check_world()
    world = MPI.COMM_WORLD
    if world.Get_size() != options.group_size:
        raise _no_such_rank(options, world)
    if options.group_size > 1:
        install_abort_hook()
    remember(Communicator(world).Split(0, options.group_rank))
    return _WORLD[0]


def _no_such_rank(options: Any, comm: MPI.Intracomm) -> LaunchError:
    return LaunchError(
        f"PyTorch calls this process rank {options.group_rank} of {options.group_size}, MPI rank "
        f"{comm.Get_rank()} of {comm.Get_size()}: start it by mpiexec or srun, and let "
        'init_process_group("mpicoll") find the ranks'
    )


def living_of(comm: Communicator, ranks: list[int]) -> Communicator:
    """A communicator of these ranks, which alone call it; other ranks of `comm` may be dead."""
    if not isinstance(Context.of(comm).queue.error, RankFailure):
        return part_of(comm, ranks)
    living = comm.shrink()
    size = living.Get_size()
    if size != len(ranks):
        raise LaunchError(
            f"{size} ranks live, and {len(ranks)} were not excluded: exclude those that died, alone"
        )
    return living


def part_of(whole: MPI.Intracomm, ranks: list[int]) -> Any:
    """A communicator of these ranks of `whole`, in their order; these alone call it."""
    group = whole.Get_group()
    part = group.Incl(ranks)
    try:
        return whole.Create_group(part)
    finally:
        part.Free()
        group.Free()


def _world_ranks(options: Any) -> list[int]:
    """The ranks of a group in MPI's world, exchanged in its store.

    For a group beside a default group of another backend.
    """
    names = [f"mpicoll rank {rank}" for rank in range(options.group_size)]
    options.store.set(names[options.group_rank], str(MPI.COMM_WORLD.Get_rank()))
    return [int(options.store.get(name)) for name in names]
