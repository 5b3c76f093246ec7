"""Tuning without measuring: the fastest algorithm per size on the model of a cluster."""

from collections.abc import Iterable, Sequence
from typing import Any

from .. import algorithms, collectives
from ..errors import ArgumentError
from ..select import rules_of, table
from ..simulate import ClusterModel, estimate_work, predict
from ..transport import Topology

#: rounds and transfers above which an algorithm is left out: about half a minute
MOST_WORK = 2_000_000


def predicted_entry(
    model: ClusterModel,
    collective: collectives.CollectiveName,
    size: int,
    sizes: Iterable[int],
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
    sizes : iterable of int
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
    usual = table.shipped().segment(Topology(placed, model.transport, model.mpi))
    winners: list[tuple[int, str, int | None]] = []
    for nbytes in sizes:
        times: dict[tuple[str, int | None], float] = {}
        for algorithm in algorithms.registered(collective):
            if algorithm.node_aware and not several:
                continue
            for cut in segments if algorithm.blocks == "segments" else [None]:
                pieces = max(1, -(-nbytes // cut)) if cut else 1
                if estimate_work(algorithm, size, segments=pieces, nodes=nodes) > MOST_WORK:
                    continue
                prediction = predict(
                    algorithm, size, nbytes, network, segments=pieces, nodes=nodes
                )
                times[algorithm.name, cut] = prediction.seconds
        if not times:
            raise ArgumentError(f"{collective} on {size} ranks: too much to simulate")
        name, cut = min(times, key=lambda key: times[key])
        # the model has whole messages; the libraries carry large ones slower than that
        winners.append((nbytes, name, cut or _pieces(collective, name, nbytes // size, usual)))
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


def _pieces(
    collective: collectives.CollectiveName, name: str, share: int, usual: int | None
) -> int | None:
    """The usual pieces, where an algorithm can have them and a rank's share is longer."""
    is_cut = algorithms.find(collective, name).cuttable and usual is not None and usual < share
    return usual if is_cut else None
