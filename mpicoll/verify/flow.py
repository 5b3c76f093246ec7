"""Whether a schedule ends also with messages in pieces, read late, or of any sizes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..schedule import Copy, Input, Output

if TYPE_CHECKING:
    from .symbolic import SortedRound

_new = tuple.__new__  # half the cost of a NamedTuple's own


class _End(NamedTuple):
    """One end of all messages from one rank to another."""

    #: the sender's end, or the receiver's
    sends: bool
    source: int
    target: int


class _Half(NamedTuple):
    """Half a message that a rank starts."""

    own: _End
    other: _End
    peer: int


class _Wait(NamedTuple):
    """A half that was started: complete when the peer has started more than `before` at its end."""

    half: _Half
    before: int


def flows_in_pieces(programs: Sequence[Sequence[SortedRound]]) -> bool:
    """Whether a schedule ends when each message is cut in two and a rank takes its halves in turn.

    This is the order of `binding.ordering.by_pieces` without run-ahead, which only starts messages
    earlier. It fails where a transfer depends on another transfer of the same round; a rank that
    starts a whole round at once does not notice. programs: the sorted rounds of every rank.
    """
    started: defaultdict[_End, int] = defaultdict(int)
    turns = [_turns(rank, steps) for rank, steps in enumerate(programs)]
    waiting: list[list[_Wait]] = [[] for _ in programs]
    todo = deque(range(len(programs)))
    while todo:
        rank = todo.popleft()
        while all(started[other] > before for (_, other, _), before in waiting[rank]):
            waiting[rank] = []
            if not turns[rank]:
                break
            for half in turns[rank].popleft():
                waiting[rank].append(_new(_Wait, (half, started[half.own])))
                started[half.own] += 1
                todo.append(half.peer)  # it may wait for this half
    return not any(waiting)


def _turns(rank: int, steps: Sequence[SortedRound]) -> deque[list[_Half]]:
    """The halves that a rank starts, turn by turn: one per peer and direction."""
    turns: deque[list[_Half]] = deque()
    for step in steps:
        halves: defaultdict[tuple[int, bool], int] = defaultdict(int)
        for peer, _ in step.sends:
            halves[peer, True] += 2
        for peer, _ in step.receives:
            halves[peer, False] += 2
        for turn in range(max(halves.values(), default=0)):
            turns.append([_half(rank, *end) for end, count in halves.items() if turn < count])
    return turns


@lru_cache(maxsize=1 << 14)
def _half(rank: int, peer: int, sends: bool) -> _Half:
    ends = (rank, peer) if sends else (peer, rank)
    return _Half(_End(sends, *ends), _End(not sends, *ends), peer)


def flows_read_late(programs: Sequence[Sequence[SortedRound]], cuttable: bool) -> bool:
    """Whether a schedule ends when a rank reads the messages of a round only once all are there.

    This is the latest time at which ranks of a node read: a rank that waits for one message does
    not read another, and the memory of a message must not change before it is read. Cuttable
    schedules are run in pieces, too; that requires more than `flows_in_pieces`. programs: the
    sorted rounds of every rank.
    """
    whole = [[_peers_of_round(step) for step in steps] for steps in programs]
    if not _ends(whole):
        return False
    if not cuttable:
        return True
    in_pieces = [
        [_peers_of_turn(turn) for turn in _turns(rank, steps)]
        for rank, steps in enumerate(programs)
    ]
    return _ends(in_pieces)


def moves_straight(programs: Sequence[Sequence[SortedRound]]) -> bool:
    """Whether all blocks of an alltoall move directly to their places, so that any sizes do."""

    def straight(rank: int, step: SortedRound) -> bool:
        return (
            all(part == Input(peer) for peer, part in step.sends)
            and all(part == Output(peer) for peer, part in step.receives)
            and all(op == Copy(Input(rank), Output(rank)) for op in step.local)
        )

    return all(straight(rank, step) for rank, steps in enumerate(programs) for step in steps)


def _peers_of_round(step: SortedRound) -> tuple[list[int], list[int]]:
    """The targets of a rank's sends in a round, and the sources of its receives."""
    return [peer for peer, _ in step.sends], [peer for peer, _ in step.receives]


def _peers_of_turn(turn: list[_Half]) -> tuple[list[int], list[int]]:
    """The targets of a rank's sends in a turn, and the sources of its receives."""
    targets = [half.peer for half in turn if half.own.sends]
    sources = [half.peer for half in turn if not half.own.sends]
    return targets, sources


def _ends(turns: Sequence[Sequence[tuple[list[int], list[int]]]]) -> bool:
    """Whether all ranks reach the end of their turns, which are targets and sources."""
    ranks = range(len(turns))
    #: messages that were sent and not read, by receiver and sender
    unread = [[0] * len(turns) for _ in ranks]
    #: the turn of each rank
    at = [-1] * len(turns)
    #: the sources of messages of that turn that a rank has not read
    wanted: list[list[int]] = [[] for _ in ranks]
    todo, queued = deque(ranks), set(ranks)
    while todo:
        rank = todo.popleft()
        queued.discard(rank)
        woken: list[int] = []
        inbox = unread[rank]
        while not _missing(inbox, wanted[rank]):
            for source in wanted[rank]:
                inbox[source] -= 1
            woken += wanted[rank]  # they may wait for this
            wanted[rank] = []
            if at[rank] >= 0 and any([unread[target][rank] for target in turns[rank][at[rank]][0]]):
                break
            if at[rank] == len(turns[rank]) - 1:
                break
            at[rank] += 1
            targets, wanted[rank] = turns[rank][at[rank]]
            for target in targets:
                unread[target][rank] += 1
            woken += targets
        for other in woken:
            if other not in queued:
                queued.add(other)
                todo.append(other)
    at_the_end = all(turn == len(steps) - 1 for turn, steps in zip(at, turns))
    return at_the_end and not any(map(any, unread))


def _missing(unread: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a message that a rank wants is missing. unread: the messages there, by sender."""
    if len(wanted) < 2:
        return any([not unread[source] for source in wanted])
    return any([unread[source] < count for source, count in Counter(wanted).items()])
