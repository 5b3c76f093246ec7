"""Going on with fewer ranks: what a training does when some of its ranks have died."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

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


class Recovered(NamedTuple):
    """What a training has after ranks have died."""

    #: on the ranks that live
    strategy: Strategy
    #: losses of the steps that its state has, from the training's first on; None: the fit begins again, with its base
    losses: list[float] | None
    #: why the base must come from a checkpoint, where it must
    lost: ShardsLost | None


class Survival:
    """How one training goes on. make(comm): a new strategy for its model, on fewer ranks.

    recoveries: of each time that ranks were lost `ranks` (how many are left), `step` (the last completed one), `seconds`.
    """

    def __init__(self, make: Callable[[Communicator], Strategy]) -> None:
        self._make = make
        self.recoveries: list[dict[str, Any]] = []

    def recover(self, old: Strategy, comm: Communicator, checkpoint: bool) -> Recovered:
        """A strategy on the ranks that live, with the state of the newest step that all of them can have. Collective.

        checkpoint: whether there may be one for where shards were lost with their copies; otherwise ShardsLost is raised,
        on all ranks; BadGradient where the last update was made from gradients that were not finite.
        """
        begin = perf_counter()
        if names := sorted({name for bad in comm.allgather(old.update.bad) for name in bad}):
            raise bad_gradient(old.update.optimizer.steps, names)
        steps = min(comm.allgather(len(old.meter.steps)))
        origin = _planned(old, comm)
        if isinstance(origin, ShardsLost) and not checkpoint:
            raise origin
        old.model.lend(old.reducer.plain_now)
        masters = old.update.masters
        # memory of its own again, until the new strategy lends it another; its dtype is that of the arithmetic
        old.model.to(dtype=(old.reducer.parameters if masters is None else masters).dtype)
        old.update.optimizer.state, old.update.optimizer.steps = {}, 0
        new = self._make(comm)
        new.meter.adopt(old.meter, steps)
        if isinstance(origin, ShardsLost):
            assert new.generations is not None
            new.generations.whole = False
            recovered, step = Recovered(new, None, origin), None
        else:
            generations, plan = origin
            losses = _handed_over(generations, plan, new)
            recovered, step = Recovered(new, None if plan.is_open else losses, None), len(losses)
        comm.Barrier()
        self._tell(comm, step, perf_counter() - begin)
        return recovered

    def _tell(self, comm: Communicator, step: int | None, seconds: float) -> None:
        where = "from a checkpoint" if step is None else f"after step {step}"
        self.recoveries.append({"ranks": comm.Get_size(), "step": step or 0, "seconds": seconds})
        if comm.Get_rank() == 0:
            text = f"mpicoll: ranks died; {comm.Get_size()} go on {where}, which took {seconds:.2f} s"
            print(text, file=sys.stderr, flush=True)


def _planned(old: Strategy, comm: Communicator) -> tuple[Generations, Plan] | ShardsLost:
    """Whose generations to take, and which; or why there are none. Alike on all ranks."""
    assert old.generations is not None
    newest = old.generations
    levels = {one.size: one for one in (newest, newest.before) if one is not None}  # each has fewer ranks
    everyone = comm.allgather({size: level.known() for size, level in levels.items()})
    lost: ShardsLost | None = None
    for size in sorted({size for known in everyone for size in known}):
        if all(size in known for known in everyone):
            try:
                plan = levels[size].plan([known[size] for known in everyone])
            except ShardsLost as failure:
                lost = lost or failure
            else:
                if plan is not None:
                    return levels[size], plan
    return lost or ShardsLost("ranks died while the state of others that died was read from a checkpoint")


def _handed_over(source: Generations, plan: Plan, new: Strategy) -> list[float]:
    """Give a generation to a new strategy; returns the losses of its steps."""
    comm, server = new.comm, min(plan.servers.values())
    mine = source.counts(plan) if comm.Get_rank() == server else None
    losses, (updates, scale) = comm.bcast(mine, root=server)
    source.hand_over(comm, plan, new.update, updates)
    if new.scale is not None and scale is not None:
        new.scale.restore(scale)
    assert new.generations is not None
    new.generations.before, new.generations.costs = source, source.costs
    found: list[float] = losses
    return found
