"""The verifier: run all ranks of a schedule on symbols and prove what it does, without MPI and without data.

Proved for each schedule: every rank ends with what its collective promises, every contribution exactly once, operands in
rank order where that is declared, the same expression (so the same bits) on all ranks; every send meets a receive of
the same blocks; nothing waits for ever although a send blocks until it is received; no memory is read and received into
in one round; the input is never written; and all of it in place as well as out of place. Rounds, messages and bytes are
counted on the way.
"""

from collections import defaultdict, deque
from typing import NamedTuple

from . import algorithms, collectives
from .errors import ArgumentError, ScheduleError
from .schedule import INPUT, MAX_MESSAGE_BYTES, OUTPUT, Copy, Part, Recv, Reduce, Send, bounds, pieces, rounds


class RankCost(NamedTuple):
    """What one rank does: messages and bytes sent, bytes received, bytes it reduces."""

    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int


class Cost(NamedTuple):
    """What a schedule costs: the longest chain of dependent rounds, the maxima over ranks, and each rank's own figures.

    A round in which a rank sends to (or receives from) k ranks counts as k rounds: one port per rank, full duplex.
    Bytes are of a vector of `count` elements of `itemsize` bytes; by default of one byte per block.
    """

    rounds: int
    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    ordered: bool
    ranks: tuple


def check(collective, generator, size, root=0, blocks=None, *, count=None, itemsize=1, ordered=None):
    """Prove that `generator(rank, size[, root])` is that collective at `size` ranks; return its `Cost`.

    blocks: how many the vector has (default: what the registry declares for this generator, else size).
    count, itemsize: the vector whose bytes are counted. ordered: also prove that operands stay in rank order
    (default: as declared). Raises ScheduleError that names rank, round and block; ArgumentError for bad arguments.
    Cost of the check: about a microsecond per block moved.
    """
    collective = collectives.find(collective) if isinstance(collective, str) else collective
    if size < 1 or not 0 <= root < size:
        raise ArgumentError(f"expected 1 or more ranks and 0 <= root < size, got size {size}, root {root}")
    entry = _declared(collective, generator)
    blocks = blocks or (entry.vector_blocks(size, size) if entry else size)
    if collective.blocks_of_ranks and blocks % size:
        raise ArgumentError(f"{collective.name} needs a multiple of {size} blocks, got {blocks}")
    ordered = entry.ordered if ordered is None and entry else bool(ordered)
    edges = bounds(blocks if count is None else count, blocks)
    cost = None
    for in_place in (False, True):
        run = _Run(collective, size, root, blocks, in_place)
        run.schedule(generator)
        run.play()
        run.conclude(ordered)
        cost = cost or run.cost(edges, itemsize)
    return cost


def register(collective, name, generator, *, max_size=17):
    """Verify a generator at 1..max_size ranks (every root), then make it usable everywhere by its name.

    To be called on all ranks alike, before the name is used. Raises ScheduleError with the first thing that is wrong,
    and ArgumentError where the name is taken. Operands may be reordered unless it proves ordered at every size.
    """
    meaning = collectives.find(collective)
    if name in algorithms.list_algorithms(collective):
        raise ArgumentError(f"{collective} already has an algorithm {name!r}: choose another name")
    ordered = True
    for size in range(1, max_size + 1):
        for root in range(size if meaning.rooted else 1):
            try:
                ordered &= check(collective, generator, size, root).ordered
            except ScheduleError as error:
                raise ScheduleError(f"{collective} {name}, {size} ranks, root {root}: {error}") from None
    algorithms.add(algorithms.Algorithm(collective, name, generator, ordered))


def _declared(collective, generator):
    return next((a for a in algorithms.registered(collective.name) if a.generator is generator), None)


class _Rank:
    """One rank's program and symbolic memory: {(place, block): expression}."""

    def __init__(self, steps):
        self.steps = steps
        self.memory = {}
        self.round = -1  # index of the round it is in
        self.pending = 0  # transfers of that round that have not met their partner
        self.arrivals = []
        self.clock = 0  # rounds that have passed when it entered this one


class _Run:
    """All ranks of one schedule on symbols."""

    def __init__(self, collective, size, root, blocks, in_place):
        self.collective, self.size, self.root, self.blocks = collective, size, root, blocks
        self.in_place = in_place
        # expressions are numbered: the contribution of rank r is r; (ranks in it, first, last or None where unordered)
        self.contents = [(1 << rank, rank, rank) for rank in range(size)]
        self.combined = {}
        self.channels = defaultdict(lambda: (deque(), deque()))  # (source, destination): sends, receives in the air
        self.ready = deque(range(size))
        self.traffic = []  # (source, part) of each send; reductions are counted apart
        self.reductions = []

    # the programs

    def schedule(self, generator):
        root = self.root if self.collective.rooted else None
        self.ranks = []
        for number in range(self.size):
            before = self.collective.before(number, self.size, self.blocks, self.root)
            after = self.collective.after(number, self.size, self.blocks, self.root)
            rank = _Rank(_solo(before, after) if self.size == 1
                         else list(rounds(generator, number, self.size, root, self.blocks)))
            rank.writable = {(OUTPUT, b) for b in self._numbers(after)}
            # in place, the input of a block is the output of that block wherever a rank has both
            shared = {b for place, b in rank.writable} if self.in_place and self._may_share(number) else ()
            rank.alias = {(INPUT, b): (OUTPUT, b) for b in self._numbers(before) if b in shared}
            for block in self._numbers(before):
                source = number if self.collective.reduces else self.collective.contributors(
                    block, self.size, self.blocks, self.root)[0]
                cell = (before.place, block)
                rank.memory[rank.alias.get(cell, cell)] = source
            rank.held = {(before.place, b) for b in self._numbers(before)}
            self.ranks.append(rank)

    def _may_share(self, number):
        rooted = self.collective.name in ("reduce", "gather", "scatter")
        return number == self.root if rooted else self.collective.name != "reduce_scatter"

    def _numbers(self, part):
        return [] if part is None else [block % self.blocks for block in range(part.first, part.first + part.count)]

    def _cells(self, number, part):
        alias = self.ranks[number].alias
        cells = [(part.place, block) for block in self._numbers(part)]
        return [alias.get(cell, cell) for cell in cells] if alias else cells

    # running

    def play(self):
        while self.ready:
            self._advance(self.ready.popleft())
        stuck = [number for number, rank in enumerate(self.ranks) if rank.round < len(rank.steps)]
        if stuck:
            raise ScheduleError("deadlock: " + "; ".join(map(self._waiting, stuck[:8])))
        for (source, target), (sends, receives) in self.channels.items():
            if sends or receives:
                raise ScheduleError(f"a message from rank {source} to rank {target} is never matched")

    def _waiting(self, number):
        rank = self.ranks[number]
        wants = [f"{'send to' if type(op) is Send else 'receive from'} {op.peer}"
                 for op in rank.steps[rank.round] if type(op) in (Send, Recv)]
        return f"rank {number} waits in round {rank.round} ({', '.join(wants)})"

    def _advance(self, number):
        """Enter rounds until one has a transfer that must wait for its partner."""
        rank = self.ranks[number]
        while not rank.pending:
            if rank.round >= 0:
                self._finish(number)
            rank.round += 1
            if rank.round == len(rank.steps):
                return
            self._post(number)

    def _post(self, number):
        rank = self.ranks[number]
        transfers = [op for op in rank.steps[rank.round] if type(op) in (Send, Recv)]
        reads = set()
        for op in transfers:
            if op.peer == number:
                self._fail(number, f"{op} is to itself")
            if type(op) is Send:
                reads.update(self._cells(number, op.part))
                values = self._read(number, op.part)
                self.traffic.append((number, op.peer, op.part))
                self._meet(number, op.peer, (op.part, values, number))
        written = set()
        for op in transfers:
            if type(op) is Recv:
                cells = self._cells(number, op.part)
                self._writable(number, op.part)
                if not reads.isdisjoint(cells) or not written.isdisjoint(cells):
                    self._fail(number, f"{op.part} is received into while the round reads or receives it elsewhere")
                written.update(cells)
                self._meet(op.peer, number, (op.part, None, number))

    def _meet(self, source, target, entry):
        """A send or a receive joins its channel; where the partner is there, the message is through."""
        sends, receives = self.channels[source, target]
        (receives if entry[1] is None else sends).append(entry)
        self.ranks[entry[2]].pending += 1
        while sends and receives:
            (sent, values, _), (into, _, _) = sends.popleft(), receives.popleft()
            if sent[1:] != into[1:]:
                self._fail(target, f"rank {source} sends blocks {sent} but rank {target} expects {into}")
            self.ranks[target].arrivals.append((into, values))
            start = max(self.ranks[source].clock, self.ranks[target].clock)
            for number in (source, target):
                rank = self.ranks[number]
                rank.start = max(getattr(rank, "start", 0), start)
                rank.pending -= 1
                if not rank.pending and number != entry[2]:
                    self.ready.append(number)

    def _finish(self, number):
        """The round's transfers are through: store what came, then reduce and copy in the order written."""
        rank = self.ranks[number]
        step = rank.steps[rank.round]
        for part, values in rank.arrivals:
            rank.memory.update(zip(self._cells(number, part), values))
        rank.arrivals.clear()
        for op in step:
            if type(op) is Reduce:
                self._write(number, op.into, self._combine(number, op))
                self.reductions.append((number, op.into))
            elif type(op) is Copy:
                if op.source[1:] != op.into[1:]:
                    self._fail(number, f"{op} gives a block another number")
                self._write(number, op.into, self._read(number, op.source))
        ports = max(len({op.peer for op in step if type(op) is kind}) for kind in (Send, Recv))
        if ports:
            rank.clock = max(rank.start, rank.clock) + ports

    def _combine(self, number, op):
        if not op.lower[1:] == op.higher[1:] == op.into[1:]:
            self._fail(number, f"{op} mixes different blocks")
        return [self._sum(number, pair, op) for pair in zip(self._read(number, op.lower), self._read(number, op.higher))]

    def _sum(self, number, pair, op):
        if pair not in self.combined:
            (left, a, b), (right, c, d) = (self.contents[expression] for expression in pair)
            if left & right:
                twice = (left & right).bit_length() - 1
                self._fail(number, f"the contribution of rank {twice} is counted twice in {op.into}")
            ordered = a is not None and c is not None and b + 1 == c
            self.contents.append((left | right, *((a, d) if ordered else (None, None))))
            self.combined[pair] = len(self.contents) - 1
        return self.combined[pair]

    def _read(self, number, part):
        memory, cells = self.ranks[number].memory, self._cells(number, part)
        try:
            return [memory[cell] for cell in cells]
        except KeyError as cell:
            place, block = cell.args[0]
            self._fail(number, f"block {block} of {place!r} is read but nothing was put there")

    def _writable(self, number, part):
        cells = [(part.place, block) for block in self._numbers(part)]
        rank = self.ranks[number]
        if part.place == INPUT:
            self._fail(number, f"{part} is written, but the input is read-only")
        if part.place == OUTPUT and not rank.writable.issuperset(cells):
            self._fail(number, f"{part} is written, but this rank has output memory for other blocks only")

    def _write(self, number, part, values):
        self._writable(number, part)
        self.ranks[number].memory.update(zip(self._cells(number, part), values))

    def _fail(self, number, message):
        where = "in place" if self.in_place else "out of place"
        raise ScheduleError(f"rank {number}, round {self.ranks[number].round} ({where}): {message}")

    # the outcome

    def conclude(self, must_be_ordered):
        self.ordered, results = True, {}
        for number, rank in enumerate(self.ranks):
            rank.round = len(rank.steps)
            after = self.collective.after(number, self.size, self.blocks, self.root)
            for block in self._numbers(after):
                (expression,) = self._read(number, Part(OUTPUT, block, 1))
                self._judge(number, block, expression)
                if results.setdefault(block, expression) != expression:
                    self._fail(number, f"block {block} is summed in another order than on other ranks: other bits")
        if must_be_ordered and not self.ordered:
            raise ScheduleError("operands do not stay in rank order, but the algorithm is declared ordered")

    def _judge(self, number, block, expression):
        wanted = 0
        for source in self.collective.contributors(block, self.size, self.blocks, self.root):
            wanted |= 1 << source
        found, first, _ = self.contents[expression]
        if found != wanted:
            self._fail(number, f"block {block} at the end is made of ranks {_names(found)}, expected {_names(wanted)}")
        self.ordered &= first is not None

    def cost(self, edges, itemsize):
        """Count rounds, messages and bytes of this run for a vector whose blocks begin at `edges`."""
        limit = MAX_MESSAGE_BYTES // itemsize
        figures = [[0, 0, 0, 0] for _ in range(self.size)]
        known = {}
        for source, target, part in self.traffic:
            if part[1:] not in known:
                cut = list(pieces(part, edges, limit))
                known[part[1:]] = len(cut), itemsize * sum(end - start for start, end in cut)
            messages, length = known[part[1:]]
            figures[source][0] += messages
            figures[source][1] += length
            figures[target][2] += length
        for number, part in self.reductions:
            figures[number][3] += itemsize * sum(end - start for start, end in pieces(part, edges))
        ranks = tuple(RankCost(*figure) for figure in figures)
        return Cost(max(rank.clock for rank in self.ranks), *map(max, zip(*ranks)), self.ordered, ranks)


def _solo(before, after):
    """The schedule of every collective at one rank."""
    return [(Copy(before, after),)] if before.place != after.place else []


def _names(mask):
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
