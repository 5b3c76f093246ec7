"""Tuning without measuring: the fastest algorithm per size on the model of a cluster."""

from collections.abc import Sequence
from typing import Any

from .. import algorithms, collectives
from ..errors import ArgumentError
from ..schedule import segment_count
from ..select import rules_of, table
from ..simulate import ClusterModel, estimate_work, predict
from ..transport import Topology
from .tuning import cuts, sizes_of

#: rounds and transfers above which an algorithm is left out: about half a minute
MOST_WORK = 2_000_000


def predicted_entry(
    model: ClusterModel,
    collective: collectives.CollectiveName,
    size: int,
    sizes: Sequence[int],
    segments: Sequence[int],
    ranks_per_node: int | None = None,
) -> dict[str, Any]:
    """The table's entry for `size` ranks of the model's cluster.

    Parameters
    ----------
    model : ClusterModel
    collective : str
        Its full name.
    size : int
        Ranks.
    sizes : sequence of int
        Bytes of the vector, ascending. Below the first MPI's own call is taken: it has no schedule
        that could be simulated.
    segments : sequence of int
        Bytes of the segments to try for pipelined algorithms. Messages of the others have the
        pieces that the shipped table knows for the model's transport.
    ranks_per_node : int, optional
        By default as many as the model has.

    Returns
    -------
    dict

    Raises
    ------
    ArgumentError
        Where every algorithm is too much to simulate.
    """
    network = model.network(size, ranks_per_node)
    nodes = network.nodes(size)
    several = bool(network.levels and network.levels[0].shared_port)
    placed = nodes or tuple(range(size))
    segment = table.shipped().segment(Topology(placed, model.transport, model.mpi))
    usual = [segment] if segment else []
    winners: list[tuple[int, str, int | None]] = []
    for nbytes in sizes_of(collective, sizes):
        times: dict[tuple[str, int | None], float] = {}
        for algorithm in algorithms.registered(collective):
            if algorithm.node_aware and not several:
                continue
            for cut in segments if algorithm.blocks == "segments" else [None]:
                pieces = segment_count(nbytes, cut)
                if estimate_work(algorithm, size, segments=pieces, nodes=nodes) > MOST_WORK:
                    continue
                prediction = predict(
                    algorithm, size, nbytes, network, segments=pieces, nodes=nodes
                )
                times[algorithm.name, cut] = prediction.seconds
        if not times:
            raise ArgumentError(f"{collective} on {size} ranks: too much to simulate")
        name, cut = min(times, key=lambda key: times[key])
        if cut is None:  # the model has whole messages; libraries carry large ones slower than that
            cut = max(cuts(algorithms.find(collective, name), size, nbytes, usual)) or None
        winners.append((nbytes, name, cut))
    each = network.levels[0].group if several else 1
    assert isinstance(each, int)
    return {
        "mpi": model.mpi,
        "transport": model.transport,
        "ranks": size,
        "nodes": -(-size // each),
        "collective": collective,
        "rules": rules_of(winners),
    }
