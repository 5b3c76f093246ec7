"""The verifier: what it counts, and that it refuses every schedule that is wrong."""

import pytest

import mpicoll
from mpicoll import ArgumentError, ScheduleError, algorithms
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import (
    INPUT, MAX_MESSAGE_BYTES, OUTPUT, Copy, Input, Output, Part, Recv, Reduce, Scratch, Send, bounds, rounds,
)
from mpicoll.verify import cases, check

EVERY = [algorithm for name in COLLECTIVES for algorithm in algorithms.registered(name)]


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry whose changes are forgotten."""
    monkeypatch.setattr(algorithms, "_REGISTRY", {name: dict(words) for name, words in algorithms._REGISTRY.items()})


def exchange(rank, size):
    """An allreduce of two ranks."""
    received = Scratch("received", 0, size)
    pair = (Input(0, size), received) if rank == 0 else (received, Input(0, size))
    yield Send(1 - rank, Input(0, size)), Recv(1 - rank, received), Reduce(*pair, Output(0, size))


def chain(rank, size):
    """An allreduce at any size, in rank order: up the chain and down again."""
    received, total = Scratch("received", 0, size), Output(0, size) if rank else Input(0, size)
    if rank:
        yield Recv(rank - 1, received), Reduce(received, Input(0, size), total)
    if rank < size - 1:
        yield Send(rank + 1, total)
        yield Recv(rank + 1, Output(0, size))
    if rank:
        yield Send(rank - 1, Output(0, size))


# ---- what is counted


def test_cost_of_a_schedule():
    cost = mpicoll.verify.check("allreduce", exchange, 2, count=10, itemsize=4)
    assert cost == (1, 1, 40, 40, 40, True, ((1, 40, 40, 40),) * 2)
    assert check("allreduce", chain, 3)[:6] == (4, 2, 6, 6, 3, True)


def test_a_round_with_two_peers_counts_twice():
    def star(rank, size):
        if rank:
            yield Send(0, Input(0, size))
            yield Recv(0, Output(0, size))
        else:
            yield Recv(1, Scratch("a", 0, size)), Recv(2, Scratch("b", 0, size)), \
                Reduce(Input(0, size), Scratch("a", 0, size), Scratch("a", 0, size)), \
                Reduce(Scratch("a", 0, size), Scratch("b", 0, size), Output(0, size))
            yield Send(1, Output(0, size)), Send(2, Output(0, size))

    cost = check("allreduce", star, 3)
    assert (cost.rounds, cost.messages, cost.ordered) == (4, 2, True)


@pytest.mark.parametrize("count", (0, 1, 5, 7, 101))
def test_bytes_of_uneven_and_of_missing_elements(count):
    size, edges = 7, bounds(count, 7)
    cost = check("allreduce", algorithms.find("allreduce", "ring").generator, size, count=count, itemsize=2)
    share = [end - start for start, end in zip(edges, edges[1:])]
    for rank, figures in enumerate(cost.ranks):
        kept = share[rank] + share[(rank + 1) % size]  # never sent in the first half, in the second
        assert figures.bytes_sent == 2 * (2 * count - kept)
        assert figures.bytes_reduced == 2 * (count - share[(rank - 1) % size])
        empty = (share * 2).count(0) - (share[rank] == 0) - (share[(rank + 1) % size] == 0)
        assert figures.messages == 12 - empty
    assert sum(rank.bytes_sent for rank in cost.ranks) == sum(rank.bytes_received for rank in cost.ranks)


def test_messages_are_cut_below_one_gibibyte():
    count, itemsize = 3 * 2**30 + 1, 8
    cost = check("bcast", algorithms.find("bcast", "linear").generator, 2, count=count, itemsize=itemsize)
    assert cost.bytes_sent == count * itemsize and MAX_MESSAGE_BYTES < 2**30
    assert cost.messages == -(-count // (MAX_MESSAGE_BYTES // itemsize))


def test_cases_are_every_root_of_few_ranks_and_some_of_many():
    bcast = algorithms.find("bcast", "pipeline")
    assert sorted({root for _, root, _ in cases(bcast, [9])}) == list(range(9))
    assert sorted({root for _, root, _ in cases(bcast, [33])}) == [0, 16, 32]
    assert {blocks for _, _, blocks in cases(bcast, [9])} == {1, 2, 5, 9}
    assert list(cases(algorithms.find("allreduce", "ring"), [40])) == [(40, 0, 40)]


# ---- mutants: each operation of each rank changed in each way that changes what the schedule does


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
    if isinstance(op, (Send, Recv)):
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
            yield f"another place of {name}", (op._replace(**{name: part._replace(place="elsewhere")}),)
    written = "part" if isinstance(op, Recv) else "into"
    if not isinstance(op, Send):
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
