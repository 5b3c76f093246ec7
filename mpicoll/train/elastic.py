"""Going on with fewer ranks: what a training does when some of its ranks have died."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeVar

import numpy
from mpi4py import MPI

from ..communicator import Communicator, all_agree, deaths, note_missing, outnumbers, refusal
from ..errors import ArgumentError, LaunchError, RankFailure
from ..support.arrays import Array, module_of
from .parallel import Generations, Plan, ShardsLost, Strategy, bad_gradient

Result = TypeVar("Result")


def living(world: MPI.Intracomm) -> Communicator:
    """A Communicator of some ranks, or of those that live, where some die while it is made. Collective over these.

    Parameters
    ----------
    world : Intracomm
        mpi4py's own, of all ranks.

    Returns
    -------
    Communicator
        Of `world`, or of fewer ranks.

    Raises
    ------
    RankFailure
        Where ranks send heartbeats and no more than half of them are left.
    """
    while True:
        comm = None
        with suppress(RankFailure):
            comm = Communicator(world)
        if all_agree(world, comm is not None) and comm is not None:
            return comm
        before, world = world, MPI.Intracomm(world.Shrink())
        note_missing(world, before)
        _require_majority(before, world)


def surviving(comm: Communicator, act: Callable[[Communicator], Result]) -> tuple[Result, Communicator]:
    """What act(comm) returns, when it has on all ranks that live; else all of them do it again, on fewer ranks.

    Parameters
    ----------
    comm : Communicator
        Of the ranks that begin. Collective over those that live.
    act : callable
        A function of a Communicator, which may raise RankFailure, on any rank, anywhere.

    Returns
    -------
    (object, Communicator)
        What act returned, and the communicator of that time.

    Raises
    ------
    RankFailure
        Where part of a training's state was lost; where ranks send heartbeats and no more than half of them are left.
    """
    while True:
        result: Any = None
        try:
            result, good = act(comm), True
        except RankFailure as failure:
            good = False
            if isinstance(failure, ShardsLost):  # on all ranks
                raise
        if all_agree(comm, good):
            return result, comm
        before, comm = comm, comm.shrink()
        _require_majority(before, comm)


def _require_majority(before: MPI.Intracomm, comm: MPI.Intracomm) -> None:
    if not outnumbers(before, comm):
        sizes = f"{comm.Get_size()} of {before.Get_size()} ranks are left"
        raise RankFailure(f"elastic: {sizes}, and with heartbeats more than half must be: the others may live, and this "
                          "host may be the one that is cut off. Begin again from a checkpoint")  # fmt: skip


def require(comm: Communicator, parameters: Array) -> None:
    """Raise, on all ranks, where lost ranks cannot be survived, and say why."""
    if problem := refusal():
        raise LaunchError(f"elastic: lost ranks cannot be survived here. {problem}")
    if comm.Get_size() == 1 and not deaths():  # the last of several may well go on
        raise ArgumentError("elastic: expected at least 2 ranks, got 1: start more, or leave it out")
    if module_of(parameters) is not numpy:
        raise ArgumentError("elastic: expected a model in host memory, got one on a device; leave it out, or use the CPU")


class Survival:
    """How one training goes on. initial: its first parameters; make(comm): a new strategy for its model, on fewer ranks.

    recoveries: of each time that ranks were lost `ranks` (how many are left), `step` (the last completed one), `seconds`.
    """

    def __init__(self, initial: Array, make: Callable[[Communicator], Strategy]) -> None:
        self._initial, self._make = initial, make
        self.recoveries: list[dict[str, Any]] = []

    def recover(self, old: Strategy, comm: Communicator, checkpoint: bool) -> tuple[Strategy, list[float] | None]:
        """A strategy on the ranks that live, and the losses of the steps that its state has; None: it has none at all.

        Collective over those. checkpoint: whether there may be one for where shards were lost with their copies; otherwise
        ShardsLost is raised, on all ranks; BadGradient where the last update was made from gradients that were not finite.
        """
        begin = perf_counter()
        if names := sorted({name for bad in comm.allgather(old.update.bad) for name in bad}):
            raise bad_gradient(old.update.optimizer.steps, names)
        steps = min(comm.allgather(len(old.meter.steps)))
        source, plan = _planned(old, comm, checkpoint)
        old.model.lend(lambda: self._initial)
        old.model.to()  # memory of its own again, until the new strategy lends it another
        old.update.optimizer.state, old.update.optimizer.steps = {}, 0
        new, losses = self._make(comm), None
        new.meter.adopt(old.meter, steps)
        if source is not None and plan is not None:
            losses = _handed_over(source, plan, new)
        comm.Barrier()
        self._tell(comm, losses, perf_counter() - begin)
        return new, losses

    def _tell(self, comm: Communicator, losses: list[float] | None, seconds: float) -> None:
        where = "from the beginning, or a checkpoint" if losses is None else f"after step {len(losses)}"
        self.recoveries.append({"ranks": comm.Get_size(), "step": len(losses or ()), "seconds": seconds})
        if comm.Get_rank() == 0:
            text = f"mpicoll: ranks died; {comm.Get_size()} go on {where}, which took {seconds:.2f} s"
            print(text, file=sys.stderr, flush=True)


def _planned(old: Strategy, comm: Communicator, checkpoint: bool) -> tuple[Generations | None, Plan | None]:
    """Whose generations to take, and which; None: there are none. Alike on all ranks."""
    newest = old.generations
    levels = {one.size: one for one in (newest, newest and newest.before) if one is not None}  # each has fewer ranks
    everyone = comm.allgather({size: level.known() for size, level in levels.items()})
    for size in sorted({size for known in everyone for size in known}):
        if all(size in known for known in everyone):
            try:
                plan = levels[size].plan([known[size] for known in everyone])
            except ShardsLost:
                if not checkpoint:
                    raise
                return None, None
            if plan is not None:
                return levels[size], plan
    return None, None


def _handed_over(source: Generations, plan: Plan, new: Strategy) -> list[float]:
    """Give a generation to a new strategy; returns the losses of its steps."""
    comm, server = new.comm, min(plan.servers.values())
    mine = source.counts(plan.generation) if comm.Get_rank() == server else None
    losses, (updates, scale) = comm.bcast(mine, root=server)
    source.hand_over(comm, plan, new.update, updates)
    if new.scale is not None and scale is not None:
        new.scale.restore(scale)
    assert new.generations is not None
    new.generations.before, new.generations.costs = source, source.costs
    found: list[float] = losses
    return found
