"""measure algorithms against MPI's own call, and check every result (run under mpiexec)."""

from argparse import ArgumentParser, Namespace
from typing import Any

from .. import collectives
from ..codes import FLOATS
from ..errors import ArgumentError
from ..support.units import many, parse_rate
from . import outfiles, userfile
from .bench_lines import Lines, osu, summary
from .graphfile import measured
from .plots import Panel, against_native, bandwidth, draw_results, share_of_link
from .options import add_shared, must_be_compressible, must_take_time, parse_sizes
from .screen import comment, folded
from .values import parsed, size, whole

NOTE = """bytes: the whole vector. Times: the maximum over ranks of each repetition, of which the
median; the candidates alternate. busbw as nccl-tests defines it. native: mpi4py's plain method.
x native: above 1 is faster. auto: what mpicoll chooses. *: the fastest."""
COMPRESSED = """~: with codes in the messages, on normally distributed data; auto without ~ is
exact. error: the largest |result - exact|. RMS: relative. of bound: the largest error as a part of
what an element may be off by. wrong: of these, elements that are off by more."""
MORE = "each candidate has a line with --all, and an entry in --json FILE"


def add_arguments(parser: ArgumentParser) -> None:
    """What is measured, how long, and where it goes."""
    add = parser.add_argument
    add("--collective", default="allreduce", metavar="NAME", help="one of `mpicoll list`")
    add("--algorithms", default="all,auto", metavar="A,B", help="words of `mpicoll list`, nccl")
    add_shared(parser, "--dtype", sizes="4K:64M", factor=2, min_time=1.0)
    add("--repeats", type=whole, metavar="N", help="repetitions per size, instead of --min-time")
    add("--op", default="sum", help="sum, prod, max, min, land, lor, lxor, band, bor, bxor")
    add_shared(parser, "--compression")
    add("--segment-bytes", type=size, metavar="B", help="segment size (default: as selected)")
    add("--root", type=whole, default=0, metavar="RANK", help="root rank of a rooted collective")
    add("--in-place", action="store_true", help="with MPI.IN_PLACE")
    add_shared(parser, "--device", "--file")
    add(
        "--format",
        choices=("table", "osu"),
        default="table",
        help="osu: the columns of the OSU micro-benchmarks, for each candidate",
    )
    add("--all", action="store_true", help="print a line for every candidate")
    add(
        "--plot", metavar="FILE.svg", help="draw bus bandwidth and the speed-up over MPI's own call"
    )
    add("--link", metavar="RATE", help="rate of the links between nodes, as 10Gb/s: draw its share")
    add(
        "--trace",
        metavar="FILE",
        help="write a Perfetto timeline of one more call per candidate and size",
    )
    add_shared(parser, "--json", "--done")


def run(arguments: Namespace) -> int:
    """Measure, print and write; exit status 1 where a result was wrong."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    from ..bench import compare, traced, tuning
    from ..communicator import Communicator
    from ..measure import OF_CALLS, measured_on, write_timeline

    comm = Communicator(MPI.COMM_WORLD)
    root = comm.Get_rank() == 0
    outfiles.check(arguments, comm)
    timing = _timing(arguments)
    options = _options(arguments, comm)
    name = measured(arguments.collective).name
    sizes = tuning.sizes_of(name, parse_sizes(arguments.sizes, arguments.factor))
    if arguments.plot and sizes == [0]:
        raise ArgumentError(f"--plot: it draws curves over bytes, and a {name} has none")
    candidates = _candidates(arguments)
    facts = measured_on(comm)
    results = []
    events = []
    facts |= _link(arguments.link, facts["nodes"])
    lines = Lines(len(candidates), len(sizes), arguments.all, arguments.compression or "")
    of = collectives.find(arguments.collective)
    prints_table = root and arguments.format == "table"
    if prints_table:
        what = (
            f"{arguments.collective}, {arguments.dtype}{f', {arguments.op}' if of.reduces else ''}"
        )
        print(
            comment(_headline(facts)),
            comment(f"{what}. {NOTE}"),
            *([comment(_compressed(arguments, candidates))] if arguments.compression else []),
            lines.heading(),
            sep="\n",
            flush=True,
        )
    for nbytes in sizes:
        rows = compare(comm, arguments.collective, candidates, nbytes, **timing, **options)
        results += rows
        if arguments.trace:
            events += traced(comm, arguments.collective, candidates, nbytes, **options)
        if prints_table:
            print(*lines.of_size(rows), sep="\n", flush=True)
    if root and not prints_table:
        print(*osu(results), sep="\n", flush=True)
    if prints_table:
        said = [*summary(results), *([MORE] if lines.brief else [])]
        print(*(folded(line, rest="  ") for line in said), sep="\n", flush=True)
    if root:
        _write(arguments, facts, results)
    if arguments.trace:
        write_timeline(arguments.trace, events, comm, OF_CALLS)
    comm.Barrier()  # status 1 ends the job: not before rank 0 has written everything
    return 1 if any(row["wrong"] for row in results) else 0


def _candidates(arguments: Namespace) -> list[Any]:
    """The candidates: native first, then as asked for, then those of the user's file.

    With --compression: native, auto as it is, and the others compressed.
    """
    from ..algorithms import NATIVE
    from ..bench import Candidate

    cut = arguments.segment_bytes
    own = userfile.load(arguments.file) if arguments.file else []
    words = _words(arguments)
    words += [each.name for each in own if each.collective == arguments.collective]
    words = list(dict.fromkeys([NATIVE, *words]))
    if not arguments.compression:
        return [Candidate(word, cut) for word in words]
    _check_compression(arguments, words[1:])
    exact = [Candidate(NATIVE, cut), Candidate("auto", cut)]
    return exact + [Candidate(word, cut, compression=arguments.compression) for word in words[1:]]


def _words(arguments: Namespace) -> list[str]:
    """The words of --algorithms; `all` stands for those that are not for study alone."""
    from .. import algorithms

    collective = measured(arguments.collective).name
    proposed = [
        each.name
        for each in algorithms.proposed(collective)
        if each.compressible or not arguments.compression
    ]
    every = proposed if arguments.compression else [*proposed, algorithms.NATIVE]
    asked = [word.strip() for word in arguments.algorithms.split(",")]
    chosen = [word for one in asked for word in (every if one == "all" else [one])]
    if algorithms.NCCL in chosen and arguments.device == "cpu":
        raise ArgumentError("nccl needs arrays in device memory: add --device cuda")
    for word in chosen:
        if word != "auto":
            algorithms.require(arguments.collective, word)
    return chosen


def _check_compression(arguments: Namespace, words: list[str]) -> None:
    """Refuse what cannot be compressed."""
    collective = collectives.find(arguments.collective)
    named = [word for word in words if word != "auto"]
    must_be_compressible(arguments.compression, collective.name, named)
    option = f"--compression {arguments.compression}"
    if arguments.op != "sum" and collective.reduces:
        raise ArgumentError(f"{option}: expected --op sum, got {arguments.op}")
    if arguments.dtype not in FLOATS:
        floats = ", ".join(FLOATS)
        raise ArgumentError(f"{option}: expected --dtype {floats}, got {arguments.dtype}")


def _compressed(arguments: Namespace, candidates: list[Any]) -> str:
    """What is run compressed, and what the columns mean."""
    words = ", ".join(each.algorithm for each in candidates if each.compression)
    return f"--compression {arguments.compression}: {words} are run compressed. {COMPRESSED}"


def _timing(arguments: Namespace) -> dict[str, Any]:
    """How long `bench.compare` is to measure, checked."""
    if arguments.repeats is not None and arguments.repeats < 1:
        raise ArgumentError(f"--repeats: expected 1 or more, got {arguments.repeats}")
    must_take_time(arguments.min_time)
    return {"seconds": arguments.min_time, "repeats": arguments.repeats}


def _options(arguments: Namespace, comm: Any) -> dict[str, Any]:
    """What it measures, checked."""
    from ..bench import operation
    from ..support.arrays import element_type
    from ..support.gpus import device_module

    if arguments.segment_bytes is not None and not 0 < arguments.segment_bytes < float("inf"):
        raise ArgumentError(
            f"--segment-bytes: expected a size above 0, got {arguments.segment_bytes}"
        )
    module = device_module(arguments.device, comm)
    operation(arguments.op)
    return {
        "dtype": element_type(arguments.dtype),
        "op": arguments.op,
        "root": arguments.root,
        "in_place": arguments.in_place,
        "module": module,
    }


def _link(rate: str | None, nodes: int) -> dict[str, str]:
    """What the facts say of the link between nodes, checked; nothing where it was not given."""
    if rate is None:
        return {}
    parsed("--link", parse_rate, rate)
    if nodes < 2:
        raise ArgumentError(
            f"--link {rate}: expected ranks on several nodes, got one; there is no link between"
            " them"
        )
    return {"link": rate}


def _headline(facts: dict[str, Any]) -> str:
    return (
        f"{facts['mpi']}, {many(facts['size'], 'rank')} on {many(facts['nodes'], 'node')}:"
        f" {facts['command']}"
    )


def _write(arguments: Namespace, facts: dict[str, Any], results: list[dict[str, Any]]) -> None:
    if arguments.json:
        outfiles.write_json(arguments.json, {"schema": 1, "environment": facts, "results": results})
    if arguments.plot:
        title = f"{results[0]['collective']}, {facts['size']} ranks, {facts['mpi']}"
        draw_results(arguments.plot, results, title, _panels(facts, results))


def _panels(facts: dict[str, Any], results: list[dict[str, Any]]) -> list[Panel]:
    """What is drawn of the results."""
    shares = [share_of_link(facts["link"], facts["nodes"])] if "link" in facts else []
    words = {row["algorithm"] for row in results}
    compared = "native" in words and len(words) > 1
    return [bandwidth(), *([against_native(results)] if compared else []), *shares]
