"""A call bound to an algorithm: this rank's rounds, the memory they run on, and the counts that only the root knows."""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from .. import algorithms, collectives, errors
from ..buffers import operand
from ..execute import PROGRESS, Context, Plan, Queue, Schedule, Work, bind
from ..schedule import bounds, offsets
from ..select import SEGMENT_BYTES
from .call import Call


def schedule_of(call: Call, algorithm: str, segment_bytes: int | None = None) -> Schedule:
    """This rank's rounds under an algorithm; it must know all counts."""
    entry = algorithms.find(call.collective.name, algorithm)
    nodes = Context.of(call.comm).topology.nodes
    if call.collective.blocks_of_ranks:
        assert call.counts is not None
        edges = offsets([count // call.dtype.itemsize for count in call.counts])
        blocks = entry.vector_blocks(call.size, 1, nodes)
    else:
        nbytes = call.nbytes or 0
        segments = max(1, -(-nbytes // (segment_bytes or SEGMENT_BYTES)))
        blocks = entry.vector_blocks(call.size, segments, nodes)
        edges = bounds(nbytes // call.dtype.itemsize, blocks)
    rounds = call.collective.program(entry.placed(nodes), call.rank, call.size, call.root, blocks)
    return Schedule(algorithm, list(rounds), edges, segment_bytes if entry.cuttable else None)


def plan_of(
    call: Call, algorithm: str, segment_bytes: int | None = None, tag: int = 0, persistent: bool = False
) -> Plan:
    """The call bound to an algorithm. persistent: the caller may forget the arrays, and any thread may run it."""
    context = Context.of(call.comm)
    schedule = schedule_of(call, algorithm, segment_bytes)
    work = Work(call, context.pool, schedule.edges, persistent)
    return bind(context, call.method, schedule, work, tag)


def share_counts(call: Call, algorithm: str) -> None:
    """`sharing_counts`, blocking."""
    if not call.counts_shared:
        PROGRESS.wait(PROGRESS.submit(sharing_counts(call, algorithm, Context.of(call.comm).next_call_tag()), Queue()))


def sharing_counts(call: Call, algorithm: str, tag: int) -> Iterator[MPI.Request]:
    """Trees of Gatherv and Scatterv need the root's counts: for a `Task`, broadcast them first, down such a tree."""
    if call.counts_shared:
        return
    if call.counts is None:
        call.counts = [0] * call.size
        call.counts[call.rank] = call.operands[0].nbytes
    if algorithm == "linear":
        return
    sizes = np.array(call.counts, np.int64)
    broadcast = Call(call.comm, "Bcast", collectives.BCAST, (), root=call.root)
    plan = plan_of(broadcast.with_operands(None, operand(sizes)), "binomial", tag=tag)
    yield from plan.run_as_task()
    plan.Free()
    own, call.counts = call.counts[call.rank], sizes.tolist()
    if own != call.counts[call.rank]:
        raise errors.BufferError(
            f"{call.method}: rank {call.rank} has a block of {own} bytes, the root says {call.counts[call.rank]}"
        )
