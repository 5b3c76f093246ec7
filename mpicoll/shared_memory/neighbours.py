"""The other processes of a node: whether they share memory with this one, and its mappings here."""

from __future__ import annotations

import os
import platform
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from errno import EBADF
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import SharedMemoryError
from ..gpu import gpu_mode
from ..support import settings
from ..support.files import identity, is_still
from ..support.garbage import without_collection
from .bell import BELL
from .heap import HEAP, HeapBlock, SegmentTable
from .limits import explained
from .mapping import Mapping, words_at
from .ranges import SLEEPS, TABLE_BYTES, offset_of

#: processors that show the writes of a core to other cores in program order
_ORDERED = ("x86_64", "AMD64", "i686")
#: mappings of segments that their owner has removed: an abandoned call may still use the latest
_KEPT = 16


class Card(NamedTuple):
    """The numbers by which other processes find the memory of a process."""

    #: in the communicator of `meet`
    rank: int
    #: whether it shares memory
    shares: int = 0
    pid: int = 0
    #: of the file of its heap
    descriptor: int = 0
    #: of that file
    token: int = 0
    #: the location of the words that lead to its rings
    rings: int = 0
    #: the descriptor and the inode of its `Bell`
    bell: int = -1
    bell_file: int = 0


class Neighbour:
    """The memory of another process, mapped on demand. Raises OSError or ValueError on failure.

    Its file stays open: without free descriptors `meet` fails, and not a later call.
    """

    _instances: dict[tuple[int, int], Neighbour] = {}

    def __init__(self, card: Card) -> None:
        path = f"/proc/{card.pid}/fd/{card.descriptor}"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        stranger = (
            f"/proc/{card.pid} is another process here: process numbers have separate namespaces"
        )
        try:
            # a read beyond the end of a shorter file would end this process
            if os.fstat(self._descriptor).st_size < TABLE_BYTES:
                raise ValueError(stranger)
            mapping = Mapping(self._descriptor, 0, TABLE_BYTES)
            self._table = SegmentTable(words_at(mapping.address, TABLE_BYTES))
            if self._table.token != card.token:
                mapping.close()
                raise ValueError(stranger)
        except (OSError, ValueError):
            os.close(self._descriptor)
            raise
        self._identity = identity(self._descriptor)
        #: the address of the word by which the process says that it sleeps
        self.sleeps_at = mapping.address + SLEEPS
        #: sorted by offset
        self._mapped: list[Mapping] = []
        #: of segments that their owner has removed
        self._ended: deque[Mapping] = deque()

    @classmethod
    def of(cls, card: Card) -> Neighbour:
        """The neighbour with this card."""
        return without_collection(cls._of, card)

    @classmethod
    def _of(cls, card: Card) -> Neighbour:
        key = card.pid, card.token
        if key not in cls._instances:
            cls._instances[key] = cls(card)
        return cls._instances[key]

    def address(self, location: int) -> int:
        """The address in this process of a location in that process."""
        begin, _, address = self.segment(location)
        return address + location - begin

    def segment(self, location: int) -> tuple[int, int, int]:
        """Where a segment begins and ends that has this location, and its address here.

        Raises SharedMemoryError where it cannot be mapped.
        """
        mapping = self._find(location)
        if mapping is None:
            mapping = without_collection(self._found_or_mapped, location)
        return mapping.offset, mapping.end, mapping.address

    def _find(self, location: int) -> Mapping | None:
        mapped = self._mapped
        place = bisect_right(mapped, location, key=offset_of) - 1
        return mapped[place] if place >= 0 and location < mapped[place].end else None

    def _found_or_mapped(self, location: int) -> Mapping:
        return self._find(location) or self._map(location)  # another thread may have mapped it

    def _map(self, location: int) -> Mapping:
        for offset, nbytes in (segments := self._table.segments()).items():
            if offset <= location < offset + nbytes:
                break
        else:
            raise OSError(f"location {location} of another rank's memory is in no segment")
        with explained(f"to map {nbytes} bytes of another rank of the node"):
            if not is_still(self._descriptor, self._identity):
                raise OSError(EBADF, "the program has closed the descriptor of that memory")
            new = Mapping(self._descriptor, offset, nbytes)
        # only now: where it fails nothing has changed
        while True:
            mapped = self._mapped
            kept = [mapping for mapping in mapped if mapping.offset in segments]
            kept = sorted([*kept, new], key=offset_of)
            if mapped is self._mapped:  # else a signal handler has mapped others meanwhile
                break
        self._mapped = kept
        self._ended.extend(mapping for mapping in mapped if mapping.offset not in segments)
        while len(self._ended) > _KEPT:
            self._ended.popleft().close()
        return new

    def words(self, location: int, nbytes: int) -> Any:
        """Memory of that process as 64-bit words."""
        return words_at(self.address(location), nbytes)


class Neighbours(NamedTuple):
    """The processes of a communicator that read each other's memory."""

    #: of all ranks of this node, by rank; empty where they share no memory
    cards: dict[int, Card]
    #: by rank, on all nodes, why a rank shares no memory
    problems: dict[int, str]
    #: the words of this rank that lead to its rings
    block: HeapBlock | None

    def but_for(self, problems: dict[int, str]) -> Neighbours:
        """The same without the ranks with problems, which all ranks know by now. Local."""
        if self.block is not None and self.cards.keys() <= problems.keys():
            HEAP.release(self.block)
            return Neighbours({}, problems, None)
        return self._replace(problems=problems)

    def among(self, ranks: Sequence[int], nodes: Sequence[int], rank: int) -> Neighbours:
        """The neighbours in a communicator of some of the ranks. Local.

        ranks: for each of its ranks, the rank in this communicator. nodes: for each of its ranks,
        the node. rank: of this process in it.
        """
        here = [new for new, node in enumerate(nodes) if node == nodes[rank]]
        problems = {}
        if self.problems:
            problems = {
                new: self.problems[old] for new, old in enumerate(ranks) if old in self.problems
            }
        if len(here) < 2 or self.block is None or not problems.keys().isdisjoint(here):
            return Neighbours({}, problems, None)
        return Neighbours({new: self.cards[ranks[new]] for new in here}, problems, self.block)

    def release(self) -> None:
        """Release the words, after the last communicator.

        They stay where a communicator was closed before other ranks had read its messages.
        """
        if self.block is not None and not any(words_at(self.block.address, self.block.nbytes)):
            HEAP.release(self.block)

    def refusal(self, nodes: Sequence[int]) -> str:
        """Why ranks of some nodes share no memory, or "". nodes: of each rank."""
        if not self.problems or len(set(nodes)) == len(nodes):
            return ""
        lowest: dict[int, str] = {}
        for other, text in sorted(self.problems.items()):
            lowest.setdefault(nodes[other], f"rank {other}: {text}")
        return "; ".join(lowest.values())


#: of a communicator without `meet`
NOBODY = Neighbours({}, {}, None)


def refusal() -> str:
    """Why this process shares no memory, or ""."""
    if not settings.shared_memory():
        return f"{settings.SHARED_MEMORY}=off"
    if not hasattr(os, "memfd_create"):
        return "the system has no memfd_create"
    if platform.machine() not in _ORDERED:
        return f"the processor ({platform.machine()}) may reorder writes"
    if gpu_mode() == settings.DIRECT:
        return "MPI is given device pointers, which other ranks' memory may be"
    return ""


def meet(node: MPI.Intracomm, rank: int, nbytes: int) -> tuple[Neighbours, str]:
    """The processes of this node, and why this rank shares no memory with them, or "".

    Collective over the node. All ranks have to learn such problems (`but_for`) before memory is
    used. rank: of this process in the whole communicator. nbytes: of this rank's words, zeros that
    other ranks of the node read.
    """
    problem = refusal()
    block = None
    card = Card(rank)
    if not problem and node.Get_size() > 1:
        try:
            block = HEAP.acquire(nbytes)
            clear(block)  # before other ranks know of it
            card = _card(rank, block)
        except SharedMemoryError as error:
            problem = str(error)
    words = np.empty((node.Get_size(), len(card)), np.int64)
    node.Allgather(np.array(card, np.int64), words)
    cards = {card.rank: card for card in map(Card._make, words.tolist())}
    return Neighbours(cards, {}, block), problem or _map_all(cards, rank)


def _card(rank: int, block: HeapBlock) -> Card:
    """The card of this process. Raises SharedMemoryError where it has no descriptor left."""
    descriptor = HEAP.descriptor()
    with explained("which has to open a pipe"):
        bell, bell_file = BELL.place()
    return Card(
        rank, True, os.getpid(), descriptor, HEAP.token, block.location, bell, bell_file
    )


def _map_all(cards: dict[int, Card], rank: int) -> str:
    """Map the memory of all other ranks that share it; returns why that fails, or ""."""
    for other, card in cards.items():
        if other != rank and card.shares:
            try:
                Neighbour.of(card)
            except (OSError, ValueError) as error:
                return f"the memory of rank {other} cannot be mapped: {error}"
    return ""


def clear(block: HeapBlock) -> None:
    """Fill a block with zeros: words of an earlier communicator would be read as messages."""
    words_at(block.address, block.nbytes)[:] = memoryview(bytes(block.nbytes)).cast("Q")
