"""The communicators of programs, made in every way that MPI has for the ranks of one job."""

import mpicoll
from mpi4py import MPI

from .neighbors import GRAPH, neighbours

#: graphs that are kept for later programs
_MOST_GRAPHS = 2


def _begun(comm):
    """A duplicate, begun and then waited for."""
    duplicate, request = comm.Idup()
    request.Wait()
    return duplicate


class Family:
    """Communicators, by how they are made; null where this rank is in none. Collective.

    wire: a communicator of mpi4py's own, on which the ranks of a lane meet. graphs: communicators of
    neighbours, made before a program that names them.
    """

    def __init__(self, world, check, timeout, sums):
        rank, size = world.Get_rank(), world.Get_size()
        exact = {sums: True} if sums else {}
        base = mpicoll.Communicator(world.Dup(), check=check, timeout=timeout, **exact)
        group = world.Get_group()
        ends = [size - 1, 0] if size > 1 else [0]
        chosen, edge = group.Incl([*range(size - 1, 0, -1)] or [0]), group.Incl(ends)
        line = base.Create_cart([size], [True])
        right, left = (rank + 1) % size, (rank - 1) % size
        self.wire = MPI.Intracomm(world.Dup())
        self.graphs = {}
        ring = [number + 1 for number in range(size)], [(number + 1) % size for number in range(size)]
        self.members = {
            "world": base, "duplicate": base.Dup(), "reversed": base.Split(0, -rank),
            "parts": base.Split(rank % 2, rank), "created": base.Create(chosen),
            "group": base.Create_group(edge) if rank in ends else MPI.COMM_NULL,
            "alone": base.Split(rank), "idup": _begun(base),
            "cart": line, "sub": line.Sub([True]), "copied cart": line.Dup(),
            "graph": base.Create_graph(*ring),
            "adjacent": base.Create_dist_graph_adjacent([left], [right]),
            "dist graph": base.Create_dist_graph([rank], [1], [right]),
            "node": base.Split_type(MPI.COMM_TYPE_SHARED),
        }  # fmt: skip
        for one in (group, chosen, edge):
            one.Free()

    def prepare(self, steps):
        """Make the graphs of neighbours that steps of a program name. Collective."""
        for step in steps:
            name = step.get("on", "")
            if name.startswith(GRAPH) and name not in self.graphs:
                graph = neighbours(int(name.removeprefix(GRAPH)), self.wire.Get_size())
                self.graphs[name] = graph.make(self.members["world"])

    def member(self, name):
        """The communicator of that name, null where this rank is not in it."""
        return self.graphs[name] if name.startswith(GRAPH) else self.members[name]

    def tidy(self):
        """After a program: free the graphs if there are many."""
        if len(self.graphs) > _MOST_GRAPHS:
            _free(self.graphs)

    def free(self):
        """In the order in which they were made."""
        _free(self.members)
        _free(self.graphs)
        self.wire.Free()


def _free(communicators):
    for comm in communicators.values():
        if comm != MPI.COMM_NULL:
            comm.Free()
    communicators.clear()
