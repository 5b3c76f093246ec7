"""Nodes: which ranks share one, found once per process group; and what all ranks must have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..buffers import require_awareness
from ..errors import MpicollError
from ..shared_memory import Neighbours, meet
from ..support import settings
from ..support.checks import must_agree, text_of
from ..support.node import fabric
from ..support.quirks import library
from .channel import name_of, random_name, words_of_wire

SHARED_MEMORY = "shared memory"
_REMEDY = "Set it alike for all ranks (mpirun -x NAME, mpiexec -genv NAME VALUE, srun --export=ALL)"


class _Place(NamedTuple):
    """The fields of a `Topology`."""

    nodes: tuple[int, ...]
    fabric: str
    library: str
    refusal: str = "nobody asked"


class Topology(_Place):
    """Where the ranks of a communicator are, and what carries their messages.

    nodes: the node of each rank, numbered in the order of the nodes' lowest ranks. fabric: what MPI uses between nodes.
    library: MPI's name and version. refusal: why ranks of a node do not read each other's memory, so that messages between
    them go through MPI; or "".
    """

    @cached_property
    def node_count(self) -> int:
        """How many nodes."""
        return max(self.nodes) + 1

    @property
    def transport(self) -> str:
        """What the slowest messages go through: the fabric, or shared memory where there is one node."""
        return self.fabric if self.node_count > 1 else SHARED_MEMORY


class Discovery(NamedTuple):
    """What ranks find out when they meet.

    name: of the wire between them. neighbours: the processes that read each other's memory.
    """

    topology: Topology
    neighbours: Neighbours
    name: str


class _Said(NamedTuple):
    """What a rank says where not all is well and alike.

    failure: why it cannot make a communicator. problem: why it shares no memory, or "". facts, wishes: must be equal.
    """

    failure: MpicollError | None
    problem: str
    facts: Mapping[str, object]
    wishes: Mapping[str, object]


def discover(
    comm: MPI.Comm,
    node: MPI.Intracomm,
    given: Mapping[str, object] | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Discovery:
    """What the ranks of a communicator have to know of each other. Collective. node: those on this node.

    given: what the caller asks for, which must be equal, too. prepare: reads what this rank needs for its calls.

    A node is where ranks can share memory. Raises ArgumentError on all ranks where they do not agree on the settings
    that decide how a call is served: ranks that chose differently would wait for each other for ever. LaunchError, on all
    ranks too, where MPICOLL_GPU=direct and MPI does not take device pointers. MpicollError, on all
    ranks, where one of them cannot read a file: it may have no descriptor left.
    """
    facts: dict[str, object] = {}
    failure = None
    try:
        facts |= settings.fingerprint()
        facts |= {"the MPI library": library(), "the network's transport": fabric()}
        prepare()
    except (OSError, ImportError) as error:
        # in a call this rank alone would raise it, and the others would wait
        failure = MpicollError(f"rank {comm.Get_rank()} cannot make a communicator: {error}")
    neighbours, problem = meet(node, comm.Get_rank(), words_of_wire())
    is_well = failure is None and not problem
    everyone = np.empty((comm.Get_size(), 4), np.int64)
    own = np.array([min(neighbours.cards), is_well, _digest(facts, given), random_name()], np.int64)
    MPI.Comm.Allgather(comm, own, everyone)
    leaders, are_well, digests, names = everyone.T
    problems = {}
    try:
        if not are_well.all() or (digests != digests[0]).any():
            said: list[_Said] = MPI.Comm.allgather(comm, _Said(failure, problem, facts, given or {}))
            _raise_difference(said)
            problems = {rank: one.problem for rank, one in enumerate(said) if one.problem}
        require_awareness(comm)
    except Exception:
        neighbours.release()
        raise
    topology = Topology(_numbered(leaders.tolist()), fabric(), library())
    return Discovery(topology, neighbours.but_for(problems), name_of(names.max()))


def _digest(*facts: object) -> int:
    """A number that is equal on ranks whose facts print alike, and as good as never where they do not."""
    return int.from_bytes(blake2b(text_of(facts).encode(), digest_size=7).digest(), "big")


def _raise_difference(everyone: Sequence[_Said]) -> None:
    """Raise the first failure, or what ranks do not agree on. Facts may be equal that do not print alike."""
    for one in everyone:
        if one.failure is not None:
            raise one.failure
    must_agree([one.facts for one in everyone], _REMEDY)
    must_agree([one.wishes for one in everyone])


def inherited(topology: Topology, places: Sequence[int]) -> Topology:
    """The `Topology` of a communicator of some ranks of another one. places: the rank there of each of its ranks. Local."""
    return topology._replace(nodes=_numbered(topology.nodes[place] for place in places))


def _numbered(labels: Iterable[int]) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(label, len(numbers)) for label in labels])
