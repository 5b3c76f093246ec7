"""Nodes: which ranks share one, found once per process group; settings that ranks agree on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import MpicollError
from ..gpu import require_awareness
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

    nodes: the node of each rank, numbered in the order of the nodes' lowest ranks. fabric: what MPI
    uses between nodes. library: MPI's name and version. refusal: why ranks of a node do not read
    each other's memory, so that messages between them go through MPI; or "".
    """

    @cached_property
    def node_count(self) -> int:
        """The number of nodes."""
        return max(self.nodes) + 1

    @property
    def transport(self) -> str:
        """The transport of the slowest messages: the fabric, or shared memory on one node."""
        return self.fabric if self.node_count > 1 else SHARED_MEMORY


class Discovery(NamedTuple):
    """What ranks find out when they meet.

    name: of the wire between them. neighbours: the processes that read each other's memory.
    """

    topology: Topology
    neighbours: Neighbours
    name: str


class _Said(NamedTuple):
    """What a rank says where a rank has a problem or another setting.

    failure: why it cannot make a communicator. problem: why it shares no memory, or "". facts,
    wishes: must be equal on all ranks.
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
    """What the ranks of a communicator have to know of each other. Collective.

    node: the ranks of this node, which can share memory. given: what the caller asks for, which
    must be equal on all ranks, too. prepare: reads what this rank needs for its calls.

    Raises the same error on all ranks: ArgumentError where they do not agree on the settings that
    decide how a call is served, as ranks that chose differently would wait for each other for ever;
    LaunchError where MPICOLL_GPU=direct and MPI does not take device pointers; MpicollError where
    one of them cannot read a file: it may have no descriptor left.
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
            own_facts = _Said(failure, problem, facts, given or {})
            everyone_said: list[_Said] = MPI.Comm.allgather(comm, own_facts)
            _raise_difference(everyone_said)
            texts = [said.problem for said in everyone_said]
            problems = {rank: text for rank, text in enumerate(texts) if text}
        require_awareness(comm)
    except Exception:
        neighbours.release()
        raise
    topology = Topology(_numbered(leaders.tolist()), fabric(), library())
    return Discovery(topology, neighbours.but_for(problems), name_of(int(names.max())))


def _digest(*facts: object) -> int:
    """A hash of the facts as they print."""
    return int.from_bytes(blake2b(text_of(facts).encode(), digest_size=7).digest(), "big")


def _raise_difference(everyone: Sequence[_Said]) -> None:
    """Raise the first failure, or what ranks do not agree on.

    Facts may be equal that do not print alike.
    """
    for said in everyone:
        if said.failure is not None:
            raise said.failure
    must_agree([said.facts for said in everyone], _REMEDY)
    must_agree([said.wishes for said in everyone])


def inherited(topology: Topology, places: Sequence[int]) -> Topology:
    """The `Topology` of a communicator of some ranks of another one. Local.

    places: the rank there of each of its ranks.
    """
    return topology._replace(nodes=_numbered(topology.nodes[place] for place in places))


def _numbered(labels: Iterable[int]) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(label, len(numbers)) for label in labels])
