"""Nodes: which ranks share one, found once per process group; and what all ranks must have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..buffers import require_awareness
from ..errors import MpicollError
from ..support import settings
from ..support.checks import must_agree, text_of
from ..support.node import fabric, library

SHARED_MEMORY = "shared memory"
#: in place of the digest of a rank that could not read what it needs
_FAILED = -1
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


def discover(
    comm: MPI.Comm,
    node: MPI.Intracomm,
    given: Mapping[str, object] | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Topology:
    """The `Topology` of a communicator. Collective. node: its ranks on this node.

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
    digest = _FAILED if failure is not None else _digest(facts, given)
    leader = MPI.Intracomm.bcast(node, comm.Get_rank())
    words = np.empty((comm.Get_size(), 2), np.int64)
    MPI.Comm.Allgather(comm, np.array([leader, digest], np.int64), words)
    if (words[:, 1] != words[0, 1]).any() or failure is not None:
        _raise_difference(MPI.Comm.allgather(comm, (failure, facts, given or {})))
    require_awareness(comm)
    return Topology(_numbered(words[:, 0].tolist()), fabric(), library())


def _digest(*facts: object) -> int:
    """A number that is equal on ranks whose facts print alike, and as good as never where they do not."""
    return int.from_bytes(blake2b(text_of(facts).encode(), digest_size=7).digest(), "big")


def _raise_difference(everyone: Sequence[tuple[MpicollError | None, Mapping[str, object], Mapping[str, object]]]) -> None:
    """Raise the first failure, or what ranks do not agree on. Facts may be equal that do not print alike."""
    for failure, *_ in everyone:
        if failure is not None:
            raise failure
    must_agree([facts for _, facts, _ in everyone], _REMEDY)
    must_agree([wishes for *_, wishes in everyone])


def inherited(topology: Topology, places: Sequence[int]) -> Topology:
    """The `Topology` of a communicator of some ranks of another one. places: the rank there of each of its ranks. Local."""
    return topology._replace(nodes=_numbered(topology.nodes[place] for place in places))


def _numbered(labels: Iterable[int]) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(label, len(numbers)) for label in labels])
