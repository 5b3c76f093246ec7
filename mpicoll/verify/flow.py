"""Whether a schedule still comes to its end when its messages are cut into pieces."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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
