"""Mutants: each operation of each rank, changed in each way that changes what a schedule does, must be refused."""

import pytest

from mpicoll import ScheduleError, algorithms
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import INPUT, MESSAGES, RECEIVES, SENDS, Part, Reduce, rounds
from mpicoll.verify import check
from tests.support.registered import EVERY

#: its allgather brings ranks blocks that they have from the scatter already: those may as well go elsewhere
DELIVERS_TWICE = [algorithms.find("bcast", word).generator for word in ("scatter_allgather", "hierarchical")]


def programs(algorithm, size, root, blocks):
    given = root if COLLECTIVES[algorithm.collective].rooted else None
    return [list(rounds(algorithm.generator, rank, size, given, blocks)) for rank in range(size)]


def check_programs(algorithm, program, size, root, blocks):
    """The verifier on explicit rounds of every rank."""
    return check(algorithm.collective, lambda rank, size, *root: iter(program[rank]), size, root, blocks,
                 ordered=algorithm.ordered)


def changed(op, algorithm, size, blocks):
    """Operations to put instead of `op`, by the mistake they are."""
    yield "dropped", ()
    if type(op) in MESSAGES:
        yield "another peer", (op._replace(peer=(op.peer + 1) % size),)
        yield "twice", (op, op)
    if isinstance(op, Reduce):
        yield "counted twice", (op, Reduce(op.into, op.lower, op.into))
        yield "own contribution twice", (Reduce(op.lower, op.lower, op.into),)
        if algorithm.ordered:
            yield "operands reordered", (Reduce(op.higher, op.lower, op.into),)
    for name, part in op._asdict().items():
        if isinstance(part, Part):
            if blocks > 1:
                yield f"another block of {name}", (op._replace(**{name: part._replace(first=(part.first + 1) % blocks)}),)
                yield f"a block more of {name}", (op._replace(**{name: part._replace(count=part.count + 1)}),)
            if not (type(op) in RECEIVES and algorithm.generator in DELIVERS_TWICE):
                yield f"another place of {name}", (op._replace(**{name: part._replace(place="elsewhere")}),)
    written = "part" if type(op) in RECEIVES else "into"
    if type(op) not in SENDS:
        yield "input written", (op._replace(**{written: getattr(op, written)._replace(place=INPUT)}),)


def mutants(algorithm, size, root, blocks):
    """(what is wrong, program) for every mistake in every operation, and every round left out."""
    right = programs(algorithm, size, root, blocks)
    for rank, steps in enumerate(right):
        for number, step in enumerate(steps):
            variants = [("round dropped", None)] if step else []
            for at, op in enumerate(step):
                variants += [(f"{what}: {op}", step[:at] + new + step[at + 1:])
                             for what, new in changed(op, algorithm, size, blocks)]
            for what, new in variants:
                altered = steps[:number] + ([] if new is None else [new]) + steps[number + 1:]
                yield f"rank {rank}, round {number}, {what}", right[:rank] + [altered] + right[rank + 1:]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EVERY, ids=lambda a: f"{a.collective}-{a.name}")
def test_refuses_every_mutant(algorithm):
    size, root = 5, 3 if COLLECTIVES[algorithm.collective].rooted else 0
    blocks = algorithm.vector_blocks(size, 3)
    check_programs(algorithm, programs(algorithm, size, root, blocks), size, root, blocks)
    accepted, number = [], 0
    for number, (what, program) in enumerate(mutants(algorithm, size, root, blocks), 1):
        try:
            check_programs(algorithm, program, size, root, blocks)
            accepted.append(what)
        except ScheduleError:
            pass
    assert number > 40 and not accepted, f"{len(accepted)} of {number} mutants accepted, the first: {accepted[:4]}"
