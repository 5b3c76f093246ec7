"""measure algorithms against MPI's own call, and check every result (run under mpiexec)."""

from argparse import ArgumentParser, Namespace
from itertools import cycle
from typing import Any

from .. import collectives
from ..errors import ArgumentError
from ..support.files import save_figure
from ..support.optional import require
from ..support.units import format_bytes, many, parse_bytes
from . import outfiles, userfile
from .bench_lines import Lines, summary
from .screen import comment, folded
from .values import number, parsed, size, whole

NOTE = """bytes: the whole vector. Times: the maximum over ranks of each repetition, of which the median; the candidates
alternate. busbw as nccl-tests defines it. native: mpi4py's plain method. x native: above 1 is faster. auto: what mpicoll
chooses. *: the fastest."""
_MARKERS = "osD^v<>ph*Pd"
MORE = "each candidate has a line with --all, and an entry in --json FILE"


def add_arguments(parser: ArgumentParser) -> None:
    """What is measured, how long, and where it goes."""
    add = parser.add_argument
    add("--collective", default="allreduce", metavar="NAME", help="allreduce (default), or another; see `mpicoll list`")
    add("--algorithms", default="all,auto", metavar="A,B", help="all,auto (default), words of `mpicoll list`, nccl")
    add("--sizes", default="4K:64M", metavar="A:B", help="bytes of the vector: 4K:64M (default), 1M, or 4K,1M")
    add("--factor", type=whole, default=2, metavar="N", help="from each size of a range to the next (default 2)")
    add("--dtype", default="float32", help="element type (default float32)")
    add("--op", default="sum", help="sum (default), prod, max, min, land, lor, lxor, band, bor, bxor")
    add("--segment-bytes", type=size, metavar="B", help="cut messages into pieces of this size (default: as selected)")
    add("--root", type=whole, default=0, metavar="RANK", help="of bcast, reduce, scatter and gather (default 0)")
    add("--in-place", action="store_true", help="with MPI.IN_PLACE")
    add("--min-time", type=number, default=1.0, metavar="S", help="seconds per size for all together (default 1)")
    add("--repeats", type=whole, metavar="N", help="repetitions of each size, instead of --min-time")
    add("--device", default="cpu", help="cpu (default), or cuda: GPU = local rank modulo their number")
    userfile.add_argument(parser)
    add("--all", action="store_true", help="print a line for each candidate, however many they are")
    add("--plot", metavar="FILE.svg", help="draw bus bandwidth over size")
    add("--json", metavar="FILE", help="write the results here")
    outfiles.add_done(parser)


def run(arguments: Namespace) -> int:
    """Measure, print and write; exit status 1 where a result was wrong."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    from ..bench import Candidate, compare
    from ..communicator import Communicator
    from ..measure import measured_on

    comm = Communicator(MPI.COMM_WORLD)
    root = comm.Get_rank() == 0
    outfiles.check(arguments, comm)
    settings, sizes = _settings(arguments, comm), parse_sizes(arguments.sizes, arguments.factor)
    candidates = [Candidate(word, arguments.segment_bytes) for word in _words(arguments)]
    facts, results = measured_on(comm), []
    lines, of = Lines(len(candidates), len(sizes), arguments.all), collectives.find(arguments.collective)
    if root:
        what = f"{arguments.collective}, {arguments.dtype}{f', {arguments.op}' if of.reduces else ''}"
        print(comment(_headline(facts)), comment(f"{what}. {NOTE}"), lines.heading(), sep="\n", flush=True)
    for nbytes in sizes:
        rows = compare(comm, arguments.collective, candidates, nbytes, **settings)
        results += rows
        if root:
            print(*lines.of_size(rows), sep="\n", flush=True)
    if root:
        said = [*summary(results), *([MORE] if lines.brief else [])]
        print(*(folded(line, rest="  ") for line in said), sep="\n", flush=True)
        _write(arguments, facts, results)
    comm.Barrier()  # status 1 ends the job: not before rank 0 has written everything
    return 1 if any(row["wrong"] for row in results) else 0


def parse_sizes(text: str, factor: int = 2, option: str = "--sizes") -> list[int]:
    """Numbers of bytes, ascending.

    >>> parse_sizes("1K:4K"), parse_sizes("64,1K")
    ([1024, 2048, 4096], [64, 1024])
    """
    if factor < 2:
        raise ArgumentError(f"--factor: expected 2 or more, got {factor}")
    sizes: set[Any] = set()
    for entry in text.split(","):
        low, _, high = entry.partition(":")
        size, last = (parsed(option, parse_bytes, text) for text in (low, high or low))
        if not 0 < size <= last < float("inf"):
            raise ArgumentError(f"{option}: expected sizes such as 4K:64M, 1M or 4K,64K, got {entry!r}")
        while size <= last:
            sizes.add(size)
            size *= factor
    return sorted(sizes)


def _words(arguments: Namespace) -> list[str]:
    """The candidates: native first, then as asked for, then those of the user's file."""
    from .. import algorithms

    own = userfile.load(arguments.file) if arguments.file else []
    known = algorithms.list_algorithms(arguments.collective)
    asked = [word.strip() for word in arguments.algorithms.split(",")]
    chosen = [word for one in asked for word in (known if one == "all" else [one])]
    if algorithms.NCCL in chosen and arguments.device == "cpu":
        raise ArgumentError("nccl needs arrays in device memory: add --device cuda")
    for word in chosen:
        if word != "auto":
            algorithms.require(arguments.collective, word)
    mine = [algorithm.name for algorithm in own if algorithm.collective == arguments.collective]
    return list(dict.fromkeys([algorithms.NATIVE, *chosen, *mine]))


def _settings(arguments: Namespace, comm: Any) -> dict[str, Any]:
    """Options of `bench.compare`, checked."""
    from ..bench import operation
    from ..support.arrays import element_type

    if arguments.segment_bytes is not None and not 0 < arguments.segment_bytes < float("inf"):
        raise ArgumentError(f"--segment-bytes: expected a size above 0, got {arguments.segment_bytes}")
    if arguments.repeats is not None and arguments.repeats < 1:
        raise ArgumentError(f"--repeats: expected 1 or more, got {arguments.repeats}")
    if arguments.device == "cpu":
        import numpy as module
    else:
        from ..support.gpus import device_module

        module = device_module(arguments.device, comm)
    operation(arguments.op)
    options = {"op": arguments.op, "root": arguments.root, "in_place": arguments.in_place, "module": module}
    timing = {"seconds": arguments.min_time, "repeats": arguments.repeats}
    return {"dtype": element_type(arguments.dtype), **timing, **options}


def _headline(facts: dict[str, Any]) -> str:
    return f"{facts['mpi']}, {many(facts['size'], 'rank')} on {many(facts['nodes'], 'node')}: {facts['command']}"


def _write(arguments: Namespace, facts: dict[str, Any], results: list[dict[str, Any]]) -> None:
    if arguments.json:
        outfiles.write_json(arguments.json, {"schema": 1, "environment": facts, "results": results})
    if arguments.plot:
        plot(arguments.plot, results, f"{facts['size']} ranks, {facts['mpi']}")


def plot(path: str, results: list[dict[str, Any]], where: str) -> None:
    """Bus bandwidth over size, a line per algorithm. where: what the title says after the collective."""
    figure = require("matplotlib.figure", "--plot").Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    words = list(dict.fromkeys(row["algorithm"] for row in results))
    for word, marker in zip(words, cycle(_MARKERS)):
        rows = [row for row in results if row["algorithm"] == word]
        # lines that lie on one another are seen by their markers, which have different forms and are hollow
        style: dict[str, Any] = {"marker": marker, "markerfacecolor": "none", "markersize": 5}
        style |= {"color": "black", "linewidth": 2.5} if word == "native" else {}
        axes.plot([row["bytes"] for row in rows], [row["busbw"] for row in rows], label=word, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row["bytes"] for row in results})
    ticks = sizes[:: -(-len(sizes) // 10)]
    axes.set_xticks(ticks, [format_bytes(nbytes) for nbytes in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="bytes of the vector", ylabel="bus bandwidth, GB/s",
             title=f"{results[0]['collective']}, {where}")  # fmt: skip
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    save_figure(figure, path)
