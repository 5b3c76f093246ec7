"""A call bound to what serves it: a schedule on memory, or the call of a library."""

from zlib import crc32

from .. import algorithms, nccl
from ..algorithms import NATIVE, NCCL
from ..buffers import HALF, ops
from ..collectives import Collective
from ..errors import ArgumentError
from ..execute import LibraryCall, NativeCall, Operation, Schedule, ScheduledCall, Work, bind
from ..schedule import SEGMENT_BYTES, bounds, keeping_sums, offsets, segment_count
from ..select import Choice, reduces_on_device
from .call import Call
from .neighbor_call import NeighborCall

#: calls that have no schedule, by the algorithm
_LIBRARY_CALLS: dict[str, type[LibraryCall]] = {
    NATIVE: NativeCall,
    NCCL: nccl.NcclCall,
}

#: in which each rank makes, and codes, the sums of its own block
_CODES_OWN_SUMS = "pairwise"


def operation_of(call: Call, choice: Choice) -> Operation:
    """The call bound to what serves it."""
    if call.keeps_sums and not (choice.compressed and choice.name == _CODES_OWN_SUMS):
        raise ArgumentError(
            f"{call.method}: KeptSums are for a call compressed by {_CODES_OWN_SUMS}, where each "
            f"rank codes the sums of its block, got {choice.name}"
        )
    if choice.name in _LIBRARY_CALLS:
        return _LIBRARY_CALLS[choice.name](call)
    if choice.compressed:
        call = call.in_codes()
    return plan_of(call, choice.name, choice.segment_bytes)


def schedule_of(call: Call, algorithm: str, segment_bytes: int | None = None) -> Schedule:
    """This rank's rounds under an algorithm.

    The rank must know all counts, unless it exchanges blocks with the root alone: then its own.
    """
    if isinstance(call, NeighborCall):
        return call.schedule(algorithm, segment_bytes)
    assert isinstance(call.collective, Collective)
    if call.collective.blocks_of_ranks and call.counts is None:
        call.counts = [0] * call.size
        call.counts[call.rank] = call.operands[0].nbytes
    entry = algorithms.find(call.collective.name, algorithm)
    nodes = call.context.topology.nodes
    if call.collective.blocks_of_ranks:
        assert call.counts is not None
        edges = offsets([count // call.dtype.itemsize for count in call.counts])
        blocks = entry.vector_blocks(call.size, 1, nodes)
    else:
        nbytes = call.nbytes or 0
        segments = segment_count(nbytes, segment_bytes or SEGMENT_BYTES)
        blocks = entry.vector_blocks(call.size, segments, nodes)
        count = nbytes // call.dtype.itemsize
        edges = bounds(count, blocks) if call.codes is None else call.codes.edges(count, blocks)
    if entry.source:
        from ..verify import Case, prove_once  # not needed by mpicoll's own algorithms

        placed = nodes if entry.node_aware else None
        case = Case(call.size, call.root or 0, blocks, placed)
        prove_once(entry, case, call.codes is not None)
    generator = entry.placed(nodes, call.codes is not None)
    rounds = call.collective.program(generator, call.rank, call.size, call.root, blocks)
    if call.keeps_sums:
        rounds = keeping_sums(rounds)
    cut = segment_bytes if entry.cuttable else None
    return Schedule(algorithm, list(rounds), edges, cut, entry.read_late)


def plan_of(call: Call, algorithm: str, segment_bytes: int | None = None) -> ScheduledCall:
    """The call bound to a schedule.

    That of a persistent call keeps the arrays alive, and any thread may run it.
    """
    context = call.context
    schedule = schedule_of(call, algorithm, segment_bytes)
    slow_on_host = call.dtype.name in HALF
    on_device = reduces_on_device(call.dtype.name, call.nbytes or 0, default=slow_on_host)
    work = Work(call, context.pool, schedule.edges, call.persistent, on_device)
    fingerprint = _fingerprint(call, schedule)
    return bind(
        context, call.method, schedule, work, fingerprint, call.nonblocking, call.persistent)


def _fingerprint(call: Call, schedule: Schedule) -> int:
    """A hash of what must be equal on all ranks: calls that differ in it never match messages."""
    reduced = "" if call.op is None else f"{call.type_name} {ops.op_name(call.op)}"
    edges = call.common_edges(schedule.edges)
    parts = (
        call.nonblocking, call.method, schedule.algorithm, schedule.segment_bytes, edges,
        call.root, reduced, call.compression if call.codes else "",
    )  # fmt: skip
    return crc32(" ".join(map(str, parts)).encode())
