"""Count the bytes that cross groups of ranks: does Bine save a third of them, and against what?

    python -m benchmarks.run.crossing --json benchmarks/results/crossing-groups.json

No MPI and no time: messages of schedules are counted on networks of two levels, for several
allocations of groups (nodes of a rack, groups of a Dragonfly) to a job:

- aligned: groups are filled in order, from rank 0 on;
- shifted: the same, but the first group is partly taken by others;
- fragmented: of each group a random part is free, about half, and the job takes it in order;
- scattered: ranks in random order.

Bytes are totals over all ranks, in units of the vector m, means over the draws.
"""

import argparse
import json
import random
from functools import lru_cache
from statistics import mean

from mpicoll import algorithms, collectives
from mpicoll.schedule import SENDS, rounds
from mpicoll.simulate.network import Level, Network

DRAWS = 8
SEGMENTS = 8
#: (ranks, ranks of a group)
SITUATIONS = ((64, 16), (100, 16))
#: only the algorithms of `PAIRS`
LARGE = ((256, 16), (256, 24), (512, 64))
#: (collective, Bine's or Swing's, its counterpart)
PAIRS = (
    ("bcast", "bine", "binomial"),
    ("reduce", "bine", "binomial"),
    ("scatter", "bine", "binomial"),
    ("gather", "bine", "binomial"),
    ("allreduce", "bine", "recursive_doubling"),
    ("allgather", "swing", "doubling"),
    ("reduce_scatter", "swing", "halving"),
    ("allreduce", "swing", "halving_doubling"),
)
#: what sends from each to each, or is no candidate for large vectors
LEFT_OUT = {
    "parameter_server", "linear", "allgather_reduce", "direct", "pairwise", "tree", "bruck",
    "reduce_bcast", "pipeline",
}  # fmt: skip


def allocations(size, group):
    """{name: the draws, each the group of each rank}."""
    shifted, fragmented, scattered = [], [], []
    aligned = [rank // group for rank in range(size)]
    for draw in range(DRAWS):
        lot = random.Random(draw)
        offset = lot.randrange(1, group)
        shifted.append([(rank + offset) // group for rank in range(size)])
        free = [node for node in range(4 * size) if lot.random() < 0.5]
        fragmented.append([node // group for node in free[:size]])
        scattered.append(lot.sample(aligned, size))
    return {
        "aligned": [aligned], "shifted": shifted, "fragmented": fragmented, "scattered": scattered,
    }  # fmt: skip


@lru_cache(maxsize=256)
def sent(algorithm, size, nodes):
    """{(from, to): blocks sent}, and the number of blocks of the vector."""
    blocks = algorithm.vector_blocks(size, SEGMENTS, nodes)
    generator = algorithm.placed(nodes)
    root = 0 if collectives.find(algorithm.collective).rooted else None
    volume = {}
    for rank in range(size):
        for step in rounds(generator, rank, size, root, blocks):
            for operation in step:
                if isinstance(operation, SENDS):
                    pair = rank, operation.peer
                    volume[pair] = volume.get(pair, 0) + operation.part.count
    return volume, blocks


def crossing(algorithm, size, draws):
    """The mean over draws of the vectors that cross groups."""
    knows_groups = algorithm.node_aware or algorithm.neighbours
    results = []
    for draw in draws:
        level = Level(draw, 0.0, 1.0)
        network = Network(0.0, 1.0, levels=(level,))
        volume, blocks = sent(algorithm, size, network.nodes(size) if knows_groups else None)
        across = (
            count
            for (source, target), count in volume.items()
            if level.group_of(source) != level.group_of(target)
        )
        results.append(sum(across) / blocks)
    return mean(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for size, group in SITUATIONS + LARGE:
        for allocation, draws in allocations(size, group).items():
            for algorithm in _algorithms((size, group) in LARGE):
                rows.append({
                    "collective": algorithm.collective, "algorithm": algorithm.name, "size": size,
                    "group": group, "allocation": allocation,
                    "crossing": round(crossing(algorithm, size, draws), 4),
                })  # fmt: skip
        print(f"{size} ranks in groups of {group}", flush=True)
    if options.json:
        document = {"schema": 1, "draws": DRAWS, "results": rows}
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")


def _algorithms(pairs_only):
    pairs = {(collective, word) for collective, *words in PAIRS for word in words}
    for collective in collectives.COLLECTIVES:
        for algorithm in algorithms.registered(collective):
            if pairs_only:
                wanted = (collective, algorithm.name) in pairs
            else:
                wanted = algorithm.name not in LEFT_OUT and collective != "alltoall"
            if wanted:
                yield algorithm


if __name__ == "__main__":
    main()
