"""What ranks are connected by, as the simulator sees it: times per message and per byte, and who shares which port."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

from ..errors import ArgumentError


class Level(NamedTuple):
    """Links inside groups of ranks: sockets, nodes, racks.

    group: ranks per group, which are then consecutive; or a sequence with the number of each rank's group.
    alpha: seconds per message; bandwidth: bytes per second; both between two ranks of a group.
    shared_port: whatever leaves the group passes through one port, one message after the other; so does what enters it.
    """

    group: int | Sequence[int]
    alpha: float
    bandwidth: float
    shared_port: bool = False

    def group_of(self, rank: int) -> int:
        """The number of the group that `rank` is in."""
        return rank // self.group if isinstance(self.group, int) else self.group[rank]


class Network(NamedTuple):
    """What ranks are connected by. alpha, bandwidth: as in `Level`, between ranks that have no group in common.

    gamma: seconds per byte reduced; copying: seconds per byte copied; levels: the groups, innermost first.
    """

    alpha: float
    bandwidth: float
    gamma: float = 0.0
    copying: float = 0.0
    levels: tuple[Level, ...] = ()

    def path(self, source: int, target: int) -> tuple[float, float, list[Hashable]]:
        """(alpha, bandwidth, ports) of a message between two ranks; a port is any hashable value."""
        ports: list[Hashable] = [("out of rank", source), ("into rank", target)]
        for depth, level in enumerate(self.levels):
            left, entered = level.group_of(source), level.group_of(target)
            if left == entered:
                return level.alpha, level.bandwidth, ports
            if level.shared_port:
                ports += [("out of group", depth, left), ("into group", depth, entered)]
        return self.alpha, self.bandwidth, ports

    def nodes(self, size: int) -> tuple[int, ...] | None:
        """The innermost group of each rank, as `algorithms.Algorithm.placed` takes it; None where there are no groups."""
        return tuple(self.levels[0].group_of(rank) for rank in range(size)) if self.levels else None

    def check(self, size: int) -> None:
        """Raise ArgumentError unless the figures make sense for this many ranks."""
        levels = [(f"level {number}", level) for number, level in enumerate(self.levels)]
        links: list[tuple[str, Network | Level]] = [("network", self), *levels]
        for where, link in links:
            if not (0 <= link.alpha < inf and link.bandwidth > 0):
                raise ArgumentError(f"{where}: expected alpha from 0 s up and bandwidth above 0 bytes/s, got {link}")
        if not (0 <= self.gamma < inf and 0 <= self.copying < inf):
            raise ArgumentError(f"network: expected 0 or more seconds per byte, got gamma {self.gamma}, copying {self.copying}")
        for number, level in enumerate(self.levels):
            if isinstance(level.group, int):
                if level.group < 1:
                    raise ArgumentError(f"level {number}: expected 1 or more ranks per group, got {level.group}")
            elif len(level.group) != size:
                raise ArgumentError(f"level {number}: expected the group of each of {size} ranks, got {len(level.group)}")
