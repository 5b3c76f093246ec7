"""predict how long algorithms take on a network that need not exist, at any number of ranks."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import cache
from typing import Any

from .. import algorithms, collectives
from ..errors import ArgumentError
from ..simulate import (
    Level,
    Network,
    closed_form,
    estimate_work,
    least_seconds,
    lower_bound,
    predict,
)
from ..support.units import format_bytes, format_seconds, parse_bytes, parse_rate, parse_seconds
from . import outfiles, userfile
from .options import add_shared, parse_sizes
from .plots import bandwidth, draw_results, share_of_bound
from .screen import comment
from .values import parsed, whole

#: Above so many rounds and transfers, which take about half a minute, a run is replaced by the
#: formula, or refused.
MOST_WORK = 2_000_000
COLUMNS = (
    ("bytes", 8),
    ("algorithm", 23),
    ("time", 10),
    ("busbw GB/s", 12),
    ("rounds", 8),
    ("x bound", 9),
    ("exact", 9),
)
NOTE = """bytes: the whole vector. time: until the last rank is done. busbw as nccl-tests defines
it. rounds: of the rank that has most. x bound: the time over a lower bound, the largest
of what rounds, bytes and reductions take alone. exact: clocks = all ranks were run;
formula = too much for that: closed form, equal blocks, rounds of the longest path."""


def add_arguments(parser: ArgumentParser) -> None:
    """Which collective, on what network."""
    add = parser.add_argument
    add("collective", help="allreduce, bcast, …")
    add("--algorithms", default="all", metavar="A,B", help="words of `mpicoll list`")
    add("--size", type=whole, default=64, metavar="N", help="number of ranks")
    add(
        "--bytes",
        default="1K,1M,64M",
        metavar="A:B",
        help="of the vector: a range, one size, or a list",
    )
    add("--alpha", default="5us", metavar="T", help="time per message")
    add("--bandwidth", default="100Gb/s", metavar="R", help="of a rank's port, in bits per second")
    add("--gamma", default="0", metavar="T", help="time to reduce a byte, such as 0.1ns")
    add("--ranks-per-node", type=whole, metavar="N", help="the ranks of a node share one port")
    add("--placement", default="block", metavar="WORD", help="block fills nodes in turn; or cyclic")
    add("--node-alpha", metavar="T", help="time per message inside a node (default: as --alpha)")
    add(
        "--node-bandwidth",
        metavar="R",
        help="of a rank's port inside a node (default: as --bandwidth)",
    )
    add("--segment-bytes", default="256K", metavar="B", help="segment size of pipelined algorithms")
    add(
        "--plot", metavar="FILE.svg", help="draw bus bandwidth and the share of the bound over size"
    )
    add_shared(parser, "--file", "--json")


def run(arguments: Namespace) -> None:
    """Predict, print and write."""
    outfiles.check(arguments)
    network = _network(arguments, arguments.size)
    chosen = _algorithms(arguments, bool(network.levels))
    sizes = parse_sizes(arguments.bytes, option="--bytes")
    longest = parsed("--segment-bytes", parse_bytes, arguments.segment_bytes)
    if not 0 < longest < float("inf"):
        raise ArgumentError(
            f"--segment-bytes: expected a size above 0, got {arguments.segment_bytes!r}"
        )
    segment_bytes = int(longest)
    print(
        comment(NOTE), "".join(f"{name:>{width}}" for name, width in COLUMNS), sep="\n", flush=True
    )
    estimate = cache(estimate_work)
    results = []
    for nbytes in sizes:
        for algorithm in chosen:
            segments = max(1, -(-nbytes // segment_bytes)) if algorithm.blocks == "segments" else 1
            try:
                prediction = _predict(algorithm, arguments, network, nbytes, segments, estimate)
            except ArgumentError as error:
                if arguments.algorithms != "all":
                    raise
                print(f"# left out: {error}", flush=True)
                continue
            results.append(
                _entry(algorithm, arguments.size, network, nbytes, segment_bytes, prediction)
            )
            print(_line(results[-1]), flush=True)
    _write(arguments, network, results)


def _algorithms(arguments: Namespace, nodes: bool) -> list[algorithms.Algorithm]:
    """The algorithms named, then those of the user's file.

    `all` includes algorithms made for nodes only if the network has nodes.
    """
    own = userfile.load(arguments.file) if arguments.file else []
    collectives.find(arguments.collective)
    if arguments.algorithms == "all":
        return [
            each
            for each in algorithms.registered(arguments.collective)
            if nodes or not each.node_aware
        ]
    words = [word.strip() for word in arguments.algorithms.split(",")]
    for word in words:
        if word in algorithms.LIBRARIES:
            raise ArgumentError(
                f"{word} is {algorithms.LIBRARIES[word]}: it has no schedule to simulate"
            )
    words += [algorithm.name for algorithm in own if algorithm.collective == arguments.collective]
    return [algorithms.find(arguments.collective, word) for word in dict.fromkeys(words)]


def _network(arguments: Namespace, size: int) -> Network:
    """The `Network` that the options describe, for this many ranks."""
    if size < 2:
        raise ArgumentError(f"--size: expected 2 or more ranks, got {size}")
    alpha = parsed("--alpha", parse_seconds, arguments.alpha)
    bandwidth = parsed("--bandwidth", parse_rate, arguments.bandwidth) / 8
    gamma = parsed("--gamma", parse_seconds, arguments.gamma)
    return Network(alpha, bandwidth, gamma, levels=_nodes(arguments, size))


def _nodes(arguments: Namespace, size: int) -> tuple[Level, ...]:
    """The level of the nodes, if there are any."""
    each = arguments.ranks_per_node
    if arguments.placement not in ("block", "cyclic"):
        raise ArgumentError(f"--placement: expected block or cyclic, got {arguments.placement!r}")
    if each is None:
        if arguments.node_alpha or arguments.node_bandwidth or arguments.placement != "block":
            raise ArgumentError(
                "--node-alpha, --node-bandwidth and --placement need --ranks-per-node"
            )
        return ()
    if each < 1:
        raise ArgumentError(f"--ranks-per-node: expected 1 or more, got {each}")
    alpha = parsed("--node-alpha", parse_seconds, arguments.node_alpha or arguments.alpha)
    bandwidth = (
        parsed("--node-bandwidth", parse_rate, arguments.node_bandwidth or arguments.bandwidth) / 8
    )
    count = -(-size // each)
    group = each if arguments.placement == "block" else [rank % count for rank in range(size)]
    return (Level(group, alpha, bandwidth, shared_port=True),)


def _predict(
    algorithm: algorithms.Algorithm,
    arguments: Namespace,
    network: Network,
    nbytes: int,
    segments: int,
    estimate: Callable[..., int],
) -> tuple[float, int, str]:
    """(seconds, rounds, "clocks" or "formula").

    Raises ArgumentError if there is too much to run and no formula.
    """
    size = arguments.size
    about = estimate(algorithm, size, segments=segments, nodes=network.nodes(size))
    if about <= MOST_WORK:
        prediction = predict(
            algorithm, size, nbytes, network, segments=segments, nodes=network.nodes(size)
        )
        return prediction.seconds, prediction.rounds, "clocks"
    cost = (
        None
        if network.levels
        else closed_form(algorithm.collective, algorithm.name, size, segments)
    )
    if cost is None:
        limit = (
            f"{algorithm.name} at {size} ranks has about {about} rounds and transfers; at most"
            f" {MOST_WORK} are run"
        )
        advice = f"choose --size {_smaller(algorithm, arguments, segments)} or less"
        raise ArgumentError(f"{limit}: {advice}{', or longer segments' if segments > 1 else ''}")
    return (
        cost.seconds(nbytes, network.alpha, network.bandwidth, network.gamma),
        cost.rounds,
        "formula",
    )


def _smaller(algorithm: algorithms.Algorithm, arguments: Namespace, segments: int) -> int:
    """A size at which it can be run."""
    size: int = arguments.size
    while size > 2:
        size //= 2
        nodes = _network(arguments, size).nodes(size)
        if estimate_work(algorithm, size, segments=segments, nodes=nodes) <= MOST_WORK:
            break
    return size


def _entry(
    algorithm: algorithms.Algorithm,
    size: int,
    network: Network,
    nbytes: int,
    segment_bytes: int,
    prediction: tuple[float, int, str],
) -> dict[str, Any]:
    seconds, rounds, how = prediction
    bound = least_seconds(algorithm.collective, size, nbytes, network)
    algbw = nbytes / seconds / 1e9 if seconds else float("inf")
    return {
        "collective": algorithm.collective,
        "algorithm": algorithm.name,
        "size": size,
        "segment_bytes": segment_bytes if algorithm.blocks == "segments" else None,
        "bytes": nbytes,
        "us": seconds * 1e6,
        "algbw": algbw,
        "busbw": algbw * lower_bound(algorithm.collective, size).sent,
        "rounds": rounds,
        "x_bound": seconds / bound if bound else None,
        "exact": how,
    }


def _line(row: dict[str, Any]) -> str:
    ratio = "-" if row["x_bound"] is None else f"{row['x_bound']:.2f}"
    cells = (
        format_bytes(row["bytes"]),
        row["algorithm"],
        format_seconds(row["us"] / 1e6),
        f"{row['busbw']:.3g}",
        row["rounds"],
        ratio,
        row["exact"],
    )
    return "".join(f"{cell!s:>{width}}" for cell, (_, width) in zip(cells, COLUMNS))


def _write(arguments: Namespace, network: Network, results: list[dict[str, Any]]) -> None:
    if arguments.json:
        facts = {
            "size": arguments.size,
            **network._asdict(),
            "levels": [level._asdict() for level in network.levels],
            "command": " ".join(["mpicoll", *sys.argv[1:]]),
        }
        outfiles.write_json(arguments.json, {"schema": 1, "network": facts, "results": results})
    if arguments.plot and results:
        where = f" in nodes of {arguments.ranks_per_node}" if network.levels else ""
        what = f"{results[0]['collective']}, {arguments.size} ranks{where}"
        title = f"{what}, {arguments.alpha}, {arguments.bandwidth} (simulated)"
        draw_results(arguments.plot, results, title, [bandwidth(), share_of_bound()])
