"""predict the time of algorithms on any network, with any number of ranks."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from .. import algorithms
from ..codes import Codes, codes_of
from ..collectives import BARRIER
from ..errors import ArgumentError
from ..graphs import NEIGHBORHOODS
from ..schedule import SEGMENT_BYTES, segment_count
from ..simulate import (
    Level,
    Network,
    closed_form,
    estimate_work,
    least_seconds,
    lower_bound,
    predict,
    predict_on_graph,
)
from ..support.units import (
    format_bytes,
    format_seconds,
    many,
    parse_bytes,
    parse_rate,
    parse_seconds,
)
from ..verify import Case, prove_once
from . import outfiles, userfile
from .graphfile import has_graph, read_graph
from .modelfile import read_model
from .options import add_shared, must_be_compressible, parse_sizes
from .plots import bandwidth, draw_results, share_of_bound
from .screen import comment
from .values import parsed, whole

#: Above so many rounds and transfers, which take about half a minute, a run is replaced by the
#: formula, or refused.
MOST_WORK = 2_000_000
#: the same where messages are cut: a piece takes as long as ten whole messages
MOST_PIECES = MOST_WORK // 10
#: ranks up to which a user's algorithm is proved, which takes about a second
MOST_PROVED = 64
#: ranks, where no number is given
_SIZE = 64
#: bytes, where none are given
_BYTES = "1K,1M,64M"
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
COLUMNS_OF_GRAPHS = (*COLUMNS[:3], ("rounds", 8), ("messages", 10))
NOTE_OF_GRAPHS = """bytes: of each block. time: until the last rank is done, all ranks on clocks.
rounds: of the rank that has most; a round may have many messages. messages: of all ranks."""
COMPRESSED = """compressed: messages have {nbytes} bytes for {group} float32 elements; busbw is
that of the elements, and the bound that of as many bytes of codes."""


def add_arguments(parser: ArgumentParser) -> None:
    """Which collective, on what network."""
    add = parser.add_argument
    add("collective", help="allreduce, bcast, …")
    add("--algorithms", default="all", metavar="A,B", help="words of `mpicoll list`")
    add("--size", type=whole, metavar="N", help="number of ranks (default 64)")
    add(
        "--bytes",
        metavar="A:B",
        help="bytes of the vector, or of a block with --graph: a range, one size, or a list"
        f" (default {_BYTES})",
    )
    add("--alpha", default="5us", metavar="T", help="time per message")
    add("--bandwidth", default="100Gb/s", metavar="R", help="of a rank's port, in bits per second")
    add(
        "--network",
        metavar="MODEL.json",
        help="the cluster that `mpicoll doctor --output` measured, in place of its figures",
    )
    add("--eager", default="0", metavar="B", help="messages up to this size await no receiver")
    add("--gamma", default="0", metavar="T", help="time to reduce a byte, such as 0.1ns")
    add_shared(parser, "--compression")
    add("--coding", default="0", metavar="T", help="time to quantise or decode a byte of elements")
    add("--ranks-per-node", type=whole, metavar="N", help="the ranks of a node share one port")
    placement = "block: fill nodes in turn; cyclic: deal ranks to them"
    add("--placement", default="block", metavar="WORD", help=placement)
    add("--node-alpha", metavar="T", help="time per message inside a node (default: as --alpha)")
    add(
        "--node-bandwidth",
        metavar="R",
        help="of a rank's port inside a node (default: as --bandwidth)",
    )
    add(
        "--segment-bytes",
        metavar="B",
        help="cut messages into pieces of this size (default: whole messages; pipelines: 256K)",
    )
    add(
        "--plot", metavar="FILE.svg", help="draw bus bandwidth and the share of the bound over size"
    )
    add_shared(parser, "--graph", "--file", "--json")


def run(arguments: Namespace) -> None:
    """Predict, print and write."""
    outfiles.check(arguments)
    if has_graph(arguments, "size", "compression", "segment_bytes", "plot", "file"):
        _run_on_graph(arguments)
        return
    if arguments.size is None:
        arguments.size = _SIZE
    network = _network(arguments, arguments.size)
    codes = codes_of(arguments.compression) if arguments.compression else None
    chosen = _algorithms(arguments, bool(network.levels))
    sizes = _sizes(arguments)
    asked = None
    if arguments.segment_bytes is not None:
        asked = _size("--segment-bytes", arguments.segment_bytes, 1, "a size above 0")
    print(comment(NOTE))
    if codes:
        print(comment(COMPRESSED.format(nbytes=codes.nbytes, group=codes.group)))
    print(_aligned([name for name, _ in COLUMNS], COLUMNS), flush=True)
    estimate = cache(estimate_work)
    results = []
    for nbytes in sizes:
        for algorithm in chosen:
            pipelined = algorithm.blocks == "segments"
            cut = asked if algorithm.cuttable or pipelined else None
            cut = cut or (SEGMENT_BYTES if pipelined else None)
            if algorithm.source:
                _prove(algorithm, arguments.size, network, nbytes, cut, codes is not None)
            try:
                prediction = _predict(algorithm, arguments, network, nbytes, cut, estimate, codes)
            except ArgumentError as error:
                if arguments.algorithms != "all":
                    raise
                print(f"# left out: {error}", flush=True)
                continue
            results.append(
                _entry(algorithm, arguments.size, network, nbytes, cut, prediction, codes)
            )
            print(_line(results[-1]), flush=True)
    _write(arguments, network, results)


def _prove(
    algorithm: algorithms.Algorithm, size: int, network: Network, nbytes: int, cut: int | None,
    compressed: bool,
) -> None:  # fmt: skip
    """Prove a user's algorithm in the case that is simulated, unless that takes minutes."""
    if size > MOST_PROVED:
        command = f"mpicoll verify --file FILE --max-size {size}"
        print(f"# {algorithm.name} is not proved at {size} ranks: use {command}", flush=True)
        return
    nodes = network.nodes(size)
    blocks = algorithm.vector_blocks(size, segment_count(nbytes, cut), nodes)
    prove_once(algorithm, Case(size, 0, blocks, nodes), compressed)


def _sizes(arguments: Namespace) -> list[int]:
    """The numbers of bytes; a barrier has no data, and messages of one byte."""
    if arguments.collective != BARRIER.name:
        return parse_sizes(arguments.bytes or _BYTES, option="--bytes")
    if arguments.bytes is not None:
        raise ArgumentError("--bytes: expected a collective that moves data, got barrier")
    return [1]


def _size(option: str, text: str, least: int, expected: str) -> int:
    """The bytes that an option says."""
    nbytes = parsed(option, parse_bytes, text)
    if not least <= nbytes < float("inf"):
        raise ArgumentError(f"{option}: expected {expected}, got {text!r}")
    return int(nbytes)


def _run_on_graph(arguments: Namespace) -> None:
    """The same of a collective of neighbours, with the nodes of the file."""
    graph, nodes = read_graph(arguments.graph)
    if graph.size + 2 * graph.edges > MOST_WORK:
        graph_is = f"{many(graph.size, 'rank')} and {many(graph.edges, 'edge')}"
        expected = f"at most {MOST_WORK} ranks and ends of edges together"
        raise ArgumentError(f"--graph: {graph_is} take too long to run: expected {expected}")
    arguments.size = graph.size
    network = _network(arguments, graph.size, nodes)
    meaning = NEIGHBORHOODS[arguments.collective].on(graph)
    chosen = _algorithms(arguments, nodes=True)
    placed = network.nodes(graph.size)
    on = many(len(set(placed or range(graph.size))), "node")
    what = f"{many(graph.size, 'rank')} on {on}, {many(graph.edges, 'edge')}"
    print(comment(f"{meaning.name}, {what}. {NOTE_OF_GRAPHS}"))
    print(_aligned([name for name, _ in COLUMNS_OF_GRAPHS], COLUMNS_OF_GRAPHS), flush=True)
    results = []
    for nbytes in _sizes(arguments):
        for algorithm in chosen:
            seconds, rounds, messages = predict_on_graph(
                meaning, algorithm.generator, nbytes, network, placed
            )
            results.append({
                "collective": meaning.name,
                "algorithm": algorithm.name,
                "size": graph.size,
                "edges": graph.edges,
                "bytes": nbytes,
                "us": seconds * 1e6,
                "rounds": rounds,
                "messages": messages,
            })  # fmt: skip
            time = format_seconds(seconds)
            cells = format_bytes(nbytes), algorithm.name, time, rounds, messages
            print(_aligned(cells, COLUMNS_OF_GRAPHS), flush=True)
    _write(arguments, network, results)


def _algorithms(arguments: Namespace, nodes: bool) -> list[algorithms.Algorithm]:
    """The algorithms named, then those of the user's file.

    `all` includes algorithms made for nodes only if the network has nodes, and with --compression
    only those that can be compressed.
    """
    own = userfile.load(arguments.file) if arguments.file else []
    if arguments.algorithms == "all":
        every = [
            each
            for each in algorithms.registered(arguments.collective)
            if nodes or not each.node_aware
        ]
        if not arguments.compression:
            return every
        must_be_compressible(arguments.compression, arguments.collective)
        return [each for each in every if each.compressible]
    words = [word.strip() for word in arguments.algorithms.split(",")]
    for word in words:
        if word in algorithms.LIBRARIES:
            raise ArgumentError(
                f"{word} is {algorithms.LIBRARIES[word]}: it has no schedule to simulate"
            )
    words += [algorithm.name for algorithm in own if algorithm.collective == arguments.collective]
    found = [algorithms.find(arguments.collective, word) for word in dict.fromkeys(words)]
    if arguments.compression:
        must_be_compressible(arguments.compression, arguments.collective, words)
    return found


def _network(arguments: Namespace, size: int, nodes: tuple[int, ...] | None = None) -> Network:
    """The `Network` that the options describe, for this many ranks.

    nodes: the node of each rank, of a graph that has them.
    """
    if size < 2 and not arguments.graph:
        raise ArgumentError(f"--size: expected 2 or more ranks, got {size}")
    if nodes and (arguments.network or arguments.ranks_per_node or arguments.placement != "block"):
        raise ArgumentError(
            "--network, --ranks-per-node and --placement place ranks, as the line nodes: does in "
            f"{arguments.graph}; leave one of them out"
        )
    if arguments.network:
        return read_model(arguments.network).network(size, arguments.ranks_per_node)
    alpha = parsed("--alpha", parse_seconds, arguments.alpha)
    bandwidth = parsed("--bandwidth", parse_rate, arguments.bandwidth) / 8
    gamma = parsed("--gamma", parse_seconds, arguments.gamma)
    coding = parsed("--coding", parse_seconds, arguments.coding)
    if coding and not arguments.compression:
        raise ArgumentError("--coding needs --compression: without it nothing is coded")
    eager = _size("--eager", arguments.eager, 0, "a size")
    levels = _nodes(arguments, size, nodes)
    return Network(alpha, bandwidth, gamma, levels=levels, coding=coding, eager=eager)


def _nodes(arguments: Namespace, size: int, nodes: tuple[int, ...] | None) -> tuple[Level, ...]:
    """The level of the nodes, if there are any."""
    each = arguments.ranks_per_node
    if arguments.placement not in ("block", "cyclic"):
        raise ArgumentError(f"--placement: expected block or cyclic, got {arguments.placement!r}")
    if each is None and nodes is None:
        if arguments.node_alpha or arguments.node_bandwidth or arguments.placement != "block":
            raise ArgumentError(
                "--node-alpha, --node-bandwidth and --placement need --ranks-per-node"
            )
        return ()
    if each is not None and each < 1:
        raise ArgumentError(f"--ranks-per-node: expected 1 or more, got {each}")
    alpha = parsed("--node-alpha", parse_seconds, arguments.node_alpha or arguments.alpha)
    bandwidth = (
        parsed("--node-bandwidth", parse_rate, arguments.node_bandwidth or arguments.bandwidth) / 8
    )
    group: int | Sequence[int]
    if nodes is not None:
        group = nodes
    elif arguments.placement == "block":
        group = each
    else:
        count = -(-size // each)
        group = [rank % count for rank in range(size)]
    return (Level(group, alpha, bandwidth, shared_port=True),)


def _predict(
    algorithm: algorithms.Algorithm,
    arguments: Namespace,
    network: Network,
    nbytes: int,
    cut: int | None,
    estimate: Callable[..., int],
    codes: Codes | None,
) -> tuple[float, int, str]:
    """(seconds, rounds, "clocks" or "formula").

    Raises ArgumentError if there is too much to run and no formula.
    """
    size = arguments.size
    nodes = network.nodes(size)
    # what is not cut is as much work at any size
    cut_bytes = nbytes if cut else 0
    about = estimate(
        algorithm, size, cut_bytes, segment_bytes=cut, nodes=nodes, compressed=codes is not None)
    most = MOST_PIECES if cut else MOST_WORK
    if about <= most:
        prediction = predict(
            algorithm, size, nbytes, network, segment_bytes=cut, nodes=nodes, codes=codes)
        return prediction.seconds, prediction.rounds, "clocks"
    segments = segment_count(nbytes, cut)
    is_flat = not (network.levels or codes or (cut and algorithm.blocks != "segments"))
    cost = closed_form(algorithm.collective, algorithm.name, size, segments) if is_flat else None
    if cost is None:
        limit = (
            f"{algorithm.name} at {size} ranks has about {about} rounds and transfers; at most"
            f" {most} are run"
        )
        advice = f"choose --size {_smaller(algorithm, arguments, cut_bytes, cut, most)} or less"
        raise ArgumentError(f"{limit}: {advice}{', or longer segments' if segments > 1 else ''}")
    return (
        cost.seconds(nbytes, network.alpha, network.bandwidth, network.gamma),
        cost.rounds,
        "formula",
    )


def _smaller(
    algorithm: algorithms.Algorithm, arguments: Namespace, nbytes: int, cut: int | None, most: int
) -> int:
    """A size at which it can be run."""
    size: int = arguments.size
    while size > 2:
        size //= 2
        nodes = _network(arguments, size).nodes(size)
        if estimate_work(algorithm, size, nbytes, segment_bytes=cut, nodes=nodes) <= most:
            break
    return size


def _entry(
    algorithm: algorithms.Algorithm,
    size: int,
    network: Network,
    nbytes: int,
    cut: int | None,
    prediction: tuple[float, int, str],
    codes: Codes | None,
) -> dict[str, Any]:
    seconds, rounds, how = prediction
    share = codes.share if codes else 1
    bound = least_seconds(algorithm.collective, size, share * nbytes, network)
    algbw = nbytes / seconds / 1e9 if seconds else float("inf")
    return {
        "collective": algorithm.collective,
        "algorithm": algorithm.name,
        **({"compression": codes.name} if codes else {}),
        "size": size,
        "segment_bytes": cut,
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
    has_data = row["collective"] != BARRIER.name
    cells = (
        format_bytes(row["bytes"]) if has_data else "-",
        row["algorithm"],
        format_seconds(row["us"] / 1e6),
        f"{row['busbw']:.3g}" if has_data else "-",
        row["rounds"],
        ratio,
        row["exact"],
    )
    return _aligned(cells, COLUMNS)


def _aligned(cells: Sequence[object], columns: Sequence[tuple[str, int]]) -> str:
    """A line of a table."""
    return "".join(f"{cell!s:>{width}}" for cell, (_, width) in zip(cells, columns))


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
        what += f", {arguments.compression}" if arguments.compression else ""
        link = arguments.network or f"{arguments.alpha}, {arguments.bandwidth}"
        title = f"{what}, {link} (simulated)"
        draw_results(arguments.plot, results, title, [bandwidth(), share_of_bound()])
