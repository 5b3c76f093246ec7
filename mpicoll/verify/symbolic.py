"""The symbolic execution of a schedule: all ranks, with expressions for data.

A value is the number of an *expression*: the contribution of a rank, or the sum of two expressions.
Ranks run round by round; a transfer is complete when its send and its receive have met, and a round
is complete when all its transfers are.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, Union

from ..errors import ScheduleError
from ..schedule import (
    INPUT,
    OUTPUT,
    RECEIVES,
    SENDS,
    Copy,
    Operation,
    Part,
    Reduce,
    deadlock,
    is_coded,
    power_of_two,
    unmatched,
)

if TYPE_CHECKING:
    from ..collectives import Collective
    from ..schedule import Recv, Send, Write, Written

    Observer = Callable[["Rank", Union["SortedRound", None], "Expressions"], object]

_new = tuple.__new__  # half the cost of a NamedTuple's own


class SortedRound(NamedTuple):
    """One round of one rank, its operations by kind."""

    sends: tuple[Send | Write, ...]
    receives: tuple[Recv | Written, ...]
    #: in order
    local: tuple[Reduce | Copy, ...]
    #: the number of its peers, which is its time in rounds
    ports: int


def sort(operations: Iterable[Operation]) -> SortedRound:
    """The `SortedRound` of one round; ScheduleError for anything but operations."""
    sends: list[Any] = []
    receives: list[Any] = []
    local: list[Any] = []
    lists: dict[type, list[Any]] = {Reduce: local, Copy: local}
    lists |= dict.fromkeys(SENDS, sends)
    lists |= dict.fromkeys(RECEIVES, receives)
    for op in operations:
        if type(op) not in lists or not all(map(_whole, op)):
            raise ScheduleError(f"{op} is no operation on whole numbers of blocks and ranks")
        lists[type(op)].append(op)
    ports = max(len({op.peer for op in sends}), len({op.peer for op in receives}))
    return SortedRound(tuple(sends), tuple(receives), tuple(local), ports)


def _whole(field: object) -> bool:
    return type(field) is int or (type(field) is Part and type(field[1]) is type(field[2]) is int)


class Expressions:
    """Numbered expressions, first the contributions; sums of the same operands have one number.

    A quantised expression is another one: its bits differ.
    """

    def __init__(self, contributions: int) -> None:
        #: of each expression, its contributions as bits
        self.ranks = [1 << number for number in range(contributions)]
        #: its first and last contribution; None where they are not in rank order
        self.span: list[tuple[int, int] | None] = [(each, each) for each in range(contributions)]
        #: the expression of two operands
        self.sums: dict[tuple[int, int], int] = {}
        #: how often the most quantised of its contributions was quantised on the way
        self.quantisations = [0] * contributions
        #: the expression without quantisations
        self.exact = list(range(contributions))
        self._quantised: dict[int, int] = {}

    def add(self, lower: int, higher: int) -> int | None:
        """The number of `lower` + `higher`, or None where they have a rank in common."""
        pair = lower, higher
        if pair not in self.sums:
            if self.ranks[lower] & self.ranks[higher]:
                return None
            left, right = self.span[lower], self.span[higher]
            span = None
            if left and right and left[1] + 1 == right[0]:
                span = left[0], right[1]
            exact = self.exact[lower], self.exact[higher]
            same = None if exact == pair else self.add(*exact)
            ranks = self.ranks[lower] | self.ranks[higher]
            often = max(self.quantisations[lower], self.quantisations[higher])
            self.sums[pair] = self._append(ranks, span, often, same)
        return self.sums[pair]

    def _append(
        self, ranks: int, span: tuple[int, int] | None, quantisations: int, exact: int | None
    ) -> int:
        """The number of one more expression. exact: None: it has no quantisations."""
        number = len(self.ranks)
        self.ranks.append(ranks)
        self.span.append(span)
        self.quantisations.append(quantisations)
        self.exact.append(number if exact is None else exact)
        return number

    def quantise(self, expression: int) -> int:
        """The number of the expression after a quantisation."""
        if expression not in self._quantised:
            often = self.quantisations[expression] + 1
            ranks, span = self.ranks[expression], self.span[expression]
            self._quantised[expression] = self._append(
                ranks, span, often, self.exact[expression])
        return self._quantised[expression]

    def canonical(self, contributions: int) -> int:
        """The number of the sum of all contributions in the canonical order.

        Leading pairs are added until a power of two is left, then a binary tree.
        """
        parts = list(range(contributions))
        pairs = len(parts) - power_of_two(len(parts)) or len(parts) // 2
        while len(parts) > 1:
            sums = [self.add(*parts[at : at + 2]) for at in range(0, 2 * pairs, 2)]
            parts = [number for number in sums if number is not None] + parts[2 * pairs :]
            pairs = len(parts) // 2
        return parts[0]

    def in_turn(self, contributions: int) -> int:
        """The number of the sum of the first contributions, each added to those before it.

        This is the canonical order of a scan: what a rank adds, the ranks after it add, too.
        """
        total = 0
        for number in range(1, contributions):
            total = self.sums.get((total, number)) or self._added(total, number)
        return total

    def _added(self, lower: int, higher: int) -> int:
        number = self.add(lower, higher)
        assert number is not None
        return number


class Rank:
    """One rank's program and memory."""

    def __init__(
        self,
        number: int,
        steps: Sequence[SortedRound],
        blocks: int,
        owned: Part | None,
        in_place: bool,
    ) -> None:
        self.number = number
        self.steps = steps
        self.blocks = blocks
        self.in_place = in_place
        #: the blocks that it has output memory for
        self.owned = owned
        #: by place, the expression in each block, or None
        self.memory: defaultdict[str, list[Any]] = defaultdict(lambda: [None] * blocks)
        #: the index of its round
        self.round = -1
        #: transfers of that round that have not met their partner
        self.pending = 0
        #: messages of that round
        self.arrivals: list[tuple[Part, list[int]]] = []
        #: rounds that have passed at the begin of that round
        self.clock = 0
        #: rounds that have passed at the begin of its transfers
        self.start = 0

    def fill(self, part: Part, expressions: list[int]) -> None:
        """Store the data at the start in `part`; in place, input and output are the same memory."""
        if self.in_place and part.place == INPUT and self.owned:
            self.memory[INPUT] = self.memory[OUTPUT]
        self.store(part, expressions)

    def read(self, part: Part) -> list[int]:
        """The expressions in `part`."""
        place, first, count = part
        memory = self.memory[place]
        last = first + count
        if first < last <= self.blocks:
            values = memory[first:last]
        elif 0 < count <= self.blocks:
            values = memory[first:] + memory[:last - self.blocks]
        else:
            self.fail(f"{part} names more or fewer blocks than the {self.blocks} there are")
        if None in values:
            block = (first + values.index(None)) % self.blocks
            self.fail(f"block {block} of {place!r} is wanted but nothing was put there")
        return values

    def store(self, part: Part, values: list[int]) -> None:
        """Store expressions in `part`."""
        place, first, count = part
        memory = self.memory[place]
        last = first + count
        if last <= self.blocks:
            memory[first:last] = values
        else:
            memory[first:] = values[:self.blocks - first]
            memory[:last - self.blocks] = values[self.blocks - first:]

    def must_be_writable(self, part: Part) -> None:
        """Fail for a part that a schedule may not write."""
        place, first, count = part
        if not 0 < count <= self.blocks:
            self.fail(f"{part} names more or fewer blocks than the {self.blocks} there are")
        if place == INPUT:
            self.fail(f"{part} is written, but the input is read-only")
        if place == OUTPUT and not self._owns(first, count):
            self.fail(f"{part} is written, but this rank has output memory for other blocks only")

    def _owns(self, first: int, count: int) -> bool:
        if self.owned is None:
            return False
        whole = self.owned.count == self.blocks
        return whole or (first - self.owned.first) % self.blocks + count <= self.owned.count

    def overlap(self, part: Part, others: Iterable[Part]) -> bool:
        """Whether `part` shares memory with one of the other parts."""
        place, first, count = part
        memory = self.memory[place]
        blocks = self.blocks
        for other_place, other_first, other_count in others:
            if self.memory[other_place] is memory:
                distance = first - other_first
                if distance % blocks < other_count or -distance % blocks < count:
                    return True
        return False

    def fail(self, message: str) -> NoReturn:
        """Raise ScheduleError that says where this rank is."""
        where = "in place" if self.in_place else "out of place"
        when = f"round {self.round + 1}" if self.round < len(self.steps) else "at the end"
        raise ScheduleError(f"rank {self.number}, {when} ({where}): {message}")


class _WaitingSide(NamedTuple):
    """One side of a transfer that waits for its partner."""

    rank: Rank
    part: Part
    #: of a send; None: a receive
    values: list[int] | None


Channel: TypeAlias = "tuple[int, int]"  # source, target


class Execution:
    """All ranks of one schedule.

    programs: the `SortedRound`s of each rank. observer: called with (rank, step, expressions) at
    the start, where step is None, and after each round of a rank; `rank.clock` is then the number
    of rounds that have passed.
    """

    def __init__(
        self,
        collective: Collective,
        root: int,
        blocks: int,
        programs: Sequence[Sequence[SortedRound]],
        expressions: Expressions,
        in_place: bool = False,
        observer: Observer | None = None,
    ) -> None:
        size = len(programs)
        self.expressions = expressions
        self.observer = observer
        #: parts of a message agree from this field on: the first block, or in an alltoall the count
        self.named = 2 if collective.personal else 1
        #: transfers that wait for their partner
        self.channels: defaultdict[Channel, deque[_WaitingSide]] = defaultdict(deque)
        self.ready = deque(range(size))
        self.ranks: list[Rank] = []
        for number, steps in enumerate(programs):
            after = collective.postcondition(number, size, blocks, root)
            rank = Rank(number, steps, blocks, after, in_place)
            self.ranks.append(rank)
            before = collective.precondition(number, size, blocks, root)
            if before:
                contributions = [
                    collective.contribution(number, block, size, blocks, root)
                    for block in range(before.first, before.first + before.count)
                ]
                rank.fill(before, contributions)
            if observer:
                observer(rank, None, expressions)

    def play(self) -> None:
        """Run to the end; ScheduleError for a forbidden operation or a deadlock."""
        while self.ready:
            self._advance(self.ranks[self.ready.popleft()])
        stuck = [
            (rank.number, rank.round, _wants(rank.steps[rank.round]))
            for rank in self.ranks
            if rank.round < len(rank.steps)
        ]
        if stuck:
            raise ScheduleError(deadlock(stuck))
        if left := unmatched(self.channels):
            raise ScheduleError(left)

    def _advance(self, rank: Rank) -> None:
        """Enter rounds until one has a transfer that must wait for its partner."""
        while not rank.pending:
            if rank.round >= 0:
                self._finish(rank, rank.steps[rank.round])
            rank.round += 1
            if rank.round == len(rank.steps):
                return
            self._post(rank, rank.steps[rank.round])

    def _post(self, rank: Rank, step: SortedRound) -> None:
        used: list[Part] = []
        for peer, part in step.sends:
            values = rank.read(part)
            used.append(part)
            self._meet(rank, self.ranks[peer], (rank.number, peer), part, values)
        for peer, part in step.receives:
            rank.must_be_writable(part)
            if rank.overlap(part, used):
                rank.fail(f"{part} is received into while the round reads or receives it elsewhere")
            used.append(part)
            self._meet(rank, self.ranks[peer], (peer, rank.number), part, None)

    def _meet(
        self, rank: Rank, peer: Rank, channel: Channel, part: Part, values: list[int] | None
    ) -> None:
        """Match a send, or a receive (no values), with its partner, or let it wait for that."""
        if rank is peer:
            rank.fail(f"{part} is sent to, or received from, the rank itself")
        waiting = self.channels[channel]
        if not waiting or waiting[0].rank is rank:
            waiting.append(_new(_WaitingSide, (rank, part, values)))
            rank.pending += 1
            return
        _, other, sent_by_peer = waiting.popleft()
        if part[self.named:] != other[self.named:] or is_coded(part) != is_coded(other):
            sent, into = (part, other) if sent_by_peer is None else (other, part)
            source, target = channel
            self.ranks[target].fail(
                f"rank {source} sends blocks {sent} but rank {target} expects {into}"
            )
        if values is not None:
            peer.arrivals.append((other, values))
        elif sent_by_peer is not None:
            rank.arrivals.append((part, sent_by_peer))
        start = max(rank.clock, peer.clock)
        rank.start = max(rank.start, start)
        peer.start = max(peer.start, start)
        peer.pending -= 1
        if not peer.pending:
            self.ready.append(peer.number)

    def _finish(self, rank: Rank, step: SortedRound) -> None:
        """After all transfers of a round: store arrivals, then reduce and copy in order."""
        for part, values in rank.arrivals:
            rank.store(part, values)
        rank.arrivals.clear()
        for op in step.local:
            if any(part[self.named:] != op.into[self.named:] for part in op):
                rank.fail(f"{op} mixes different blocks")
            rank.must_be_writable(op.into)
            values = self._copy(rank, op) if isinstance(op, Copy) else self._sum(rank, op)
            rank.store(op.into, values)
        if step.ports:
            rank.clock = max(rank.start, rank.clock) + step.ports
        if self.observer:
            self.observer(rank, step, self.expressions)

    def _copy(self, rank: Rank, op: Copy) -> list[int]:
        values = rank.read(op.source)
        if is_coded(op.into) and not is_coded(op.source):
            return list(map(self.expressions.quantise, values))
        return values

    def _sum(self, rank: Rank, op: Reduce) -> list[int]:
        if any(map(is_coded, op)):
            rank.fail(f"{op} adds codes")
        lower, higher = rank.read(op.lower), rank.read(op.higher)
        values: list[Any] = list(map(self.expressions.add, lower, higher))
        if None in values:
            at = values.index(None)
            ranks = self.expressions.ranks
            twice = (ranks[lower[at]] & ranks[higher[at]]).bit_length() - 1
            rank.fail(f"the contribution of rank {twice} is counted twice in {op.into}")
        return values


def _wants(step: SortedRound) -> list[str]:
    sends = [f"send to {op.peer}" for op in step.sends]
    return sends + [f"receive from {op.peer}" for op in step.receives]
