"""Whether a schedule still comes to its end when its messages are cut into pieces, or read late, or have any sizes."""

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
    """One end of the messages from one rank to another: the rank that sends them, or the one that receives."""

    sends: bool
    source: int
    target: int


class _Half(NamedTuple):
    """Half a message that a rank starts: its own end, the peer's, and the peer."""

    mine: _End
    theirs: _End
    peer: int


class _Wait(NamedTuple):
    """A half that was started: through when the peer has started more than `before` at its end."""

    half: _Half
    before: int


def flows_in_pieces(programs: Sequence[Sequence[SortedRound]]) -> bool:
    """Whether a schedule comes to its end when each message is cut in two and a rank takes its halves in turn.

    This is the order of `execute.ordering.by_pieces` where nothing runs ahead; running ahead only starts things earlier.
    It fails where a transfer depends on another of the same round, which is no matter to whoever starts a whole round at once.
    programs: the sorted rounds of every rank.
    """
    started: defaultdict[_End, int] = defaultdict(int)
    turns = [_turns(rank, steps) for rank, steps in enumerate(programs)]
    waiting: list[list[_Wait]] = [[] for _ in programs]
    todo = deque(range(len(programs)))
    while todo:
        rank = todo.popleft()
        while all(started[theirs] > before for (_, theirs, _), before in waiting[rank]):
            waiting[rank] = []
            if not turns[rank]:
                break
            for half in turns[rank].popleft():
                waiting[rank].append(_new(_Wait, (half, started[half.mine])))
                started[half.mine] += 1
                todo.append(half.peer)  # it may have waited for this
    return not any(waiting)


def _turns(rank: int, steps: Sequence[SortedRound]) -> deque[list[_Half]]:
    """What a rank starts, turn by turn: half a message per peer and direction."""
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
    """Whether a schedule comes to its end when nothing is acknowledged before all that a rank receives in a round is there.

    So it is at the latest where ranks read each other's memory: whoever waits for one message does not read another, and
    what a message lies in must not change before it is read. Tried round by round and, where it is cuttable, in pieces too,
    for which `flows_in_pieces` asks less. programs: the sorted rounds of every rank.
    """
    whole = [[([peer for peer, _ in step.sends], [peer for peer, _ in step.receives]) for step in steps] for steps in programs]
    if not _ends(whole):
        return False
    return not cuttable or _ends([[_peers(turn) for turn in _turns(*one)] for one in enumerate(programs)])


def moves_straight(programs: Sequence[Sequence[SortedRound]]) -> bool:
    """Whether every block of an alltoall goes from where it lies to where it belongs, so that it may have any size."""

    def straight(rank: int, step: SortedRound) -> bool:
        return (
            all(part == Input(peer) for peer, part in step.sends)
            and all(part == Output(peer) for peer, part in step.receives)
            and all(op == Copy(Input(rank), Output(rank)) for op in step.local)
        )

    return all(straight(rank, step) for rank, steps in enumerate(programs) for step in steps)


def _peers(turn: list[_Half]) -> tuple[list[int], list[int]]:
    """Whom a rank sends halves to in a turn, and whom it receives from."""
    return [half.peer for half in turn if half.mine.sends], [half.peer for half in turn if not half.mine.sends]


def _ends(turns: Sequence[Sequence[tuple[list[int], list[int]]]]) -> bool:
    """Whether all ranks come to the end of their turns. turns: of each rank, whom it sends to and whom it receives from."""
    ranks = range(len(turns))
    unread = [[0] * len(turns) for _ in ranks]  # by the receiver, then the sender: what was sent and not read
    at = [-1] * len(turns)
    wanted: list[list[int]] = [[] for _ in ranks]  # of the turn that a rank is in: whose messages it has not read
    todo, queued = deque(ranks), set(ranks)
    while todo:
        rank = todo.popleft()
        queued.discard(rank)
        woken: list[int] = []
        mine = unread[rank]
        while not _missing(mine, wanted[rank]):
            for source in wanted[rank]:
                mine[source] -= 1
            woken += wanted[rank]  # they may have waited for this
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
    return not any(map(any, unread)) and all(place == len(steps) - 1 for place, steps in zip(at, turns))


def _missing(unread: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a message is not there yet that a rank wants. unread: how many are, by sender."""
    if len(wanted) < 2:
        return any([not unread[source] for source in wanted])
    return any([unread[source] < count for source, count in Counter(wanted).items()])
