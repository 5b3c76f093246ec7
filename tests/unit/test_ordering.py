"""Pieces that flow through the rounds: every rank's order of starts, waits and sums, run on real memory without MPI.

The network is as unkind as MPI allows: a send completes only when it is received, a transfer happens at any moment
between the later start and the wait, memory that is being received into holds garbage, and whoever can go on is drawn by
lot. A wrong hazard shows as a wrong sum, a circular wait as a standstill.
"""

import random
from collections import defaultdict, deque
from functools import cache

import numpy as np
import pytest

from mpicoll import algorithms
from mpicoll.binding.device_copies import Twin, with_copies
from mpicoll.binding.lowering import lowered
from mpicoll.binding.ordering import by_pieces, by_rounds
from mpicoll.binding.program import Instruction, Step
from mpicoll.binding.scratch import Memory, Vector
from mpicoll.buffers import address, at, span
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import OUTPUT, Copy, Recv, Send, bounds
from tests.support.registered import EVERY

ITEM = 8
GARBAGE = -(2**40)


class Rank:
    """One rank: its memory, and its steps as a queue of small actions.

    reduced_on: None for memory of the host; else it is a device's, messages use copies of it on the host, and it is
    reduced on the "host" or on the "device".
    """

    def __init__(self, algorithm, rank, size, root, nodes, count, piece, ahead, in_place, reduced_on=None, together=False):
        collective = COLLECTIVES[algorithm.collective]
        blocks = algorithm.vector_blocks(size, 5, nodes)
        count -= count % blocks if collective.personal else 0  # a number says where a block lies: all have one size
        self.edges = bounds(count, blocks)
        before, after = (part(rank, size, blocks, root) for part in (collective.precondition, collective.postcondition))
        self.reduced_on, self.twins, self.owned = reduced_on, [], []
        vectors, source = {}, np.arange(count) * 100 + (rank + 1 if collective.reduces or collective.personal else 0)
        if before is not None:
            vectors[before.place] = self.vector(source, before)
        if after is not None and after.place not in vectors:
            same = in_place and before is not None and collective.shares_memory
            whole = source if same else np.full(count, GARBAGE)
            vectors[after.place] = self.vector(whole, after)
        program = [step for step in collective.program(algorithm.placed(nodes), rank, size, root, blocks) if step]
        self.result = vectors[OUTPUT].array if after is not None else None
        if reduced_on:
            vectors = self.staged(vectors)
        memory = Memory(program, self.edges, vectors, np.dtype(np.int64), self.scratch, piece * ITEM)
        rounds = with_copies([list(lowered(step, memory, span, self.where_reduced)) for step in program], self.twins)
        self.memory = memory  # which owns what programs know by address
        self.steps = by_pieces(rounds, ahead, together)
        self.tasks = [task for tasks in rounds for task in tasks]
        self.queue = deque(self.actions())
        self.expected = self.correct(collective, after, rank, size) if after is not None else None

    def vector(self, whole, part):
        low, high = self.edges[part.first], self.edges[part.first + part.count]
        return Vector(whole[low:high], low)

    def staged(self, vectors):
        """Copies on the host, for messages. What is in place has one."""
        copies = {}
        for name in sorted(vectors):
            whole = vectors[name].array.base
            wanted = OUTPUT in vectors and vectors[OUTPUT].array.base is whole
            copies[id(whole)] = copies[id(whole)] if id(whole) in copies else self.twin(whole, wanted)
        return {name: Vector(copies[id(array.base)][base:][: array.size], base) for name, (array, base, _) in vectors.items()}

    def twin(self, device, wanted):
        host = np.full_like(device, GARBAGE)
        self.twins.append(Twin(address(host), address(device), device.nbytes, wanted))
        self.owned += host, device
        return host

    def scratch(self, nbytes):
        made = np.full(-(-nbytes // ITEM), GARBAGE)
        return (self.twin(made, False) if self.reduced_on == "device" else made).view(np.uint8)

    def where_reduced(self, span):
        for twin in self.twins if self.reduced_on == "device" else ():
            if twin.on_host(span[0]):
                return tuple(edge + twin.device - twin.host for edge in span)
        return span

    def correct(self, collective, after, rank, size):
        if collective.personal:
            mine = np.arange(self.edges[rank], self.edges[rank + 1]) * 100
            return np.concatenate([mine + source + 1 for source in range(size)])
        low, high = self.edges[after.first], self.edges[after.first + after.count]
        index = np.arange(low, high) * 100
        terms = len(collective.contributors(rank, 0, size, 1))
        return index * terms + terms * (terms + 1) // 2 if collective.reduces else index

    def actions(self):
        for step in self.steps:
            yield from (("start", task) for task in step.starts)
            yield from (("wait", task) for task in step.waits)
            yield from (("local", task) for task in step.local)


def play(ranks, seed):
    """Run all ranks to the end, in an order drawn by lot."""
    lot = random.Random(seed)
    wires, streams, done = defaultdict(lambda: (deque(), deque())), defaultdict(deque), set()

    def step(number):
        action, task = ranks[number].queue[0]
        if action == "start" and task.is_copied:
            streams[number, task.kind].append(task)
            ends(task)[1][:] = GARBAGE
        elif action == "start":
            pair = (number, task.peer) if task.is_sent else (task.peer, number)
            wires[pair][task.is_received].append(task)
            if task.is_received:
                array(task.span)[:] = GARBAGE
        elif action == "wait" and id(task) not in done:
            return False
        elif action == "local":
            *sources, target = map(array, task.reads + task.writes)
            np.copyto(target, sources[0]) if task.kind is Copy else np.add(*sources, out=target)
        ranks[number].queue.popleft()
        return True

    def transfer(pair):
        sends, receives = wires[pair]
        if not (sends and receives):
            return False
        send, receive = sends.popleft(), receives.popleft()
        assert send.nbytes == receive.nbytes, f"{pair}: a piece of {send.nbytes} bytes meets one of {receive.nbytes}"
        array(receive.span)[:] = array(send.span)
        done.update((id(send), id(receive)))
        return True

    def copy(stream):
        if not streams[stream]:
            return False
        task = streams[stream].popleft()
        source, target = ends(task)
        target[:] = source
        done.add(id(task))
        return True

    while any(rank.queue for rank in ranks):
        moves = [(step, number) for number, rank in enumerate(ranks) if rank.queue]
        moves += [(transfer, pair) for pair in wires] + [(copy, stream) for stream in streams]
        lot.shuffle(moves)
        assert any(move(of) for move, of in moves), f"standstill: {[rank.queue[0] for rank in ranks if rank.queue]}"
    assert not any(queue for pair in wires.values() for queue in pair), "messages left over"


def ends(task):
    """(source, target) of a copy between host and device."""
    return array(task.reads[0]), array(task.writes[0])


def array(span):
    """The numbers at an address."""
    return at(span[0], span[1] - span[0], np.int64)


@cache
def placements(size):
    return None, tuple(rank % 2 for rank in range(size)), tuple(rank.bit_length() for rank in range(size))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EVERY, ids=lambda algorithm: f"{algorithm.collective}-{algorithm.name}")
@pytest.mark.parametrize("reduced_on", [None, "host", "device"])
def test_every_algorithm_in_pieces_on_an_unkind_network(algorithm, reduced_on):
    lot = random.Random(f"{algorithm.collective}-{algorithm.name}")
    rooted = COLLECTIVES[algorithm.collective].rooted
    for size in (2, 3, 5, 8):
        for nodes in placements(size) if algorithm.node_aware or algorithm.neighbours else (None,):
            root, count, piece, ahead = lot.randrange(size) if rooted else 0, lot.choice((size - 1, 61, 97)), \
                lot.choice((1, 3, 8)), lot.choice((0, 1, 2, 4))
            together = reduced_on is not None and lot.random() < 0.5
            ranks = [Rank(algorithm, rank, size, root, nodes, count, 1000 if together else piece, 0 if together else ahead,
                          lot.random() < 0.5, reduced_on, together) for rank in range(size)]  # fmt: skip
            play(ranks, seed=lot.random())
            for number, rank in enumerate(ranks):
                assert rank.result is None or np.array_equal(rank.result, rank.expected), (size, root, piece, ahead, number)


@pytest.mark.parametrize("name", ("ring", "circulant", "recursive_doubling"))
def test_pieces_overlap_and_requests_stay_few(name):
    """The point of it: a round's first piece is sent before its predecessor's last has come, within a window."""
    algorithm, ahead = algorithms.find("allreduce", name), 4
    ranks = [Rank(algorithm, rank, 5, 0, None, 1000, 10, ahead, True) for rank in range(5)]
    overtaken = False
    for rank in ranks:
        alive, most, received = set(), 0, set()
        for action, task in rank.actions():
            if action == "start":
                overtaken |= task.kind is Send and any(other.kind is Recv and id(other) not in received
                                                       for other in alive_tasks(rank, alive))
                alive.add(id(task))
            elif action == "wait":
                alive.discard(id(task))
                received.add(id(task))
            most = max(most, len(alive))
        assert not alive
        assert most <= 2 * (2 * ahead + 1) + 2
    assert overtaken


def alive_tasks(rank, alive):
    return [task for task in rank.tasks if id(task) in alive]


@pytest.mark.parametrize(
    "mutation, name",
    (("receives too early", "ring"), ("sends too early", "ring"), ("sends awaited too late", "recursive_doubling")),
)
def test_the_unkind_network_finds_a_broken_order(mutation, name):
    """What the tests above would miss, they would miss here: the same run with one rule of the order broken."""
    caught = 0
    for seed in range(12):
        ranks = [Rank(algorithms.find("allreduce", name), rank, 4, 0, None, 60, 4, 2, True) for rank in range(4)]
        spoil(ranks[0], mutation)
        try:
            play(ranks, seed)
            caught += any(not np.array_equal(rank.result, rank.expected) for rank in ranks)
        except AssertionError:
            caught += 1
    assert caught


def spoil(rank, mutation):
    """Move all starts of a kind to the front, or all waits for sends to the end."""
    actions = list(rank.queue)
    kind, action = {"receives too early": (Recv, "start"), "sends too early": (Send, "start"),
                    "sends awaited too late": (Send, "wait")}[mutation]  # fmt: skip
    moved = [one[0] == action and one[1].kind is kind for one in actions]
    chosen, others = ([one for one, which in zip(actions, moved) if which is wanted] for wanted in (True, False))
    rank.queue = deque(others + chosen if action == "wait" else chosen + others)


def test_round_by_round_is_one_step_per_round():
    task = Instruction(Send, 1, ((0, 8),), ())
    local = Instruction(Copy, None, ((8, 16),), ((0, 8),))
    (step,) = by_rounds([[task, local]])
    assert step == Step(0, [task], [task], [local])
    (piece,) = by_pieces([[task, local]], 4)
    assert piece == step  # the sum overwrites what is sent: the send is awaited first


def test_input_is_never_in_the_way():
    """A ring's sends of the caller's input start as early as the window allows."""
    rank = Rank(algorithms.find("reduce_scatter", "ring"), 0, 4, 0, None, 64, 4, 4, False)
    first = [task.kind for task in rank.steps[0].starts]
    assert first.count(Send) == 4 and first.count(Recv) >= 4
