"""Whether a schedule still comes to its end when its messages are cut into pieces."""

from collections import defaultdict, deque


def flows_in_pieces(programs):
    """Whether a schedule comes to its end when each message is cut in two and a rank takes its halves in turn.

    This is the order of `dataflow.by_pieces` where nothing runs ahead; running ahead only starts things earlier. It fails
    where a transfer depends on another of the same round, which is no matter to whoever starts a whole round at once.
    programs: the sorted rounds of every rank.
    """
    started, turns = defaultdict(int), [_turns(rank, steps) for rank, steps in enumerate(programs)]
    waiting, todo = [None] * len(programs), deque(range(len(programs)))
    while todo:
        rank = todo.popleft()
        while waiting[rank] is None or all(started[mine] > count < started[theirs] for mine, theirs, count in waiting[rank]):
            waiting[rank] = None
            if not turns[rank]:
                break
            waiting[rank] = []
            for mine, theirs in turns[rank].popleft():
                waiting[rank].append((mine, theirs, started[mine]))
                started[mine] += 1
                todo.append(mine[3])  # the peer may have waited for this
    return not any(waiting)


def _turns(rank, steps):
    """What a rank starts, half a message per peer and direction at a time: queue of lists of (lane, the peer's lane)."""
    turns = deque()
    for step in steps:
        lanes = defaultdict(int)
        for name, transfers in (("send", step.sends), ("receive", step.receives)):
            for peer, _ in transfers:
                lanes[name, peer] += 2
        for turn in range(max(lanes.values(), default=0)):
            turns.append([_lane_pair(rank, *lane) for lane, count in lanes.items() if turn < count])
    return turns


def _lane_pair(rank, name, peer):
    ends = (rank, peer) if name == "send" else (peer, rank)
    return (name, *ends, peer), ("receive" if name == "send" else "send", *ends, rank)
