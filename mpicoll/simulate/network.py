"""Networks of the simulator: times per message and per byte, and shared ports."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

from ..errors import ArgumentError


class Level(NamedTuple):
    """Links inside groups of ranks: sockets, nodes, racks."""

    #: ranks per group of consecutive ranks; or the group of each rank
    group: int | Sequence[int]
    #: seconds per message between two ranks of a group
    alpha: float
    #: bytes per second between two ranks of a group
    bandwidth: float
    #: messages that leave the group share one port, and so do messages that enter it
    shared_port: bool = False

    def group_of(self, rank: int) -> int:
        """The number of the group of `rank`."""
        return rank // self.group if isinstance(self.group, int) else self.group[rank]


class Network(NamedTuple):
    """The links between ranks."""

    #: seconds per message between ranks without a common group
    alpha: float
    #: bytes per second between ranks without a common group
    bandwidth: float
    #: seconds per byte reduced
    gamma: float = 0.0
    #: seconds per byte copied
    copying: float = 0.0
    #: the groups, innermost first
    levels: tuple[Level, ...] = ()
    #: seconds per byte of elements that are coded or decoded
    coding: float = 0.0
    #: bytes of the longest message that is sent before its receiver is there
    eager: int = 0

    def path(self, source: int, target: int) -> tuple[float, float, list[Hashable]]:
        """(alpha, bandwidth, ports) of a message between two ranks; ports are hashable values."""
        ports: list[Hashable] = [("out of rank", source), ("into rank", target)]
        for depth, level in enumerate(self.levels):
            source_group = level.group_of(source)
            target_group = level.group_of(target)
            if source_group == target_group:
                return level.alpha, level.bandwidth, ports
            if level.shared_port:
                ports.append(("out of group", depth, source_group))
                ports.append(("into group", depth, target_group))
        return self.alpha, self.bandwidth, ports

    def nodes(self, size: int) -> tuple[int, ...] | None:
        """The innermost group of each rank, for `Algorithm.placed`; None without groups."""
        return tuple(self.levels[0].group_of(rank) for rank in range(size)) if self.levels else None

    def check(self, size: int) -> None:
        """Raise ArgumentError for figures that are invalid for this number of ranks."""
        levels = [(f"level {number}", level) for number, level in enumerate(self.levels)]
        links: list[tuple[str, Network | Level]] = [("network", self), *levels]
        for where, link in links:
            if not (0 <= link.alpha < inf and link.bandwidth > 0):
                expected = "alpha from 0 s up and bandwidth above 0 bytes/s"
                raise ArgumentError(f"{where}: expected {expected}, got {link}")
        local = self.gamma, self.copying, self.coding
        if not all(0 <= seconds < inf for seconds in local):
            got = f"gamma {self.gamma}, copying {self.copying}, coding {self.coding}"
            raise ArgumentError(f"network: expected 0 or more seconds per byte, got {got}")
        for where, level in levels:
            if isinstance(level.group, int):
                if level.group < 1:
                    expected = "1 or more ranks per group"
                    raise ArgumentError(f"{where}: expected {expected}, got {level.group}")
            elif len(level.group) != size:
                expected = f"the group of each of {size} ranks"
                raise ArgumentError(f"{where}: expected {expected}, got {len(level.group)}")
