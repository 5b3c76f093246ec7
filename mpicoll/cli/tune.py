"""measure algorithms on this machine and write a tuning table (run under mpiexec)."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..algorithms import NATIVE
from ..codes import codes_of
from ..collectives import CollectiveName
from ..errors import ArgumentError
from ..support.units import format_bytes, format_seconds, many
from . import outfiles
from .graphfile import measured
from .modelfile import read_model
from .options import add_shared, must_take_time, parse_sizes
from .plots import draw_table
from .values import parsed, whole

#: of a prediction, the numbers of ranks where none is given
_RANKS = "2,4,8,16,32,64"


def add_arguments(parser: ArgumentParser) -> None:
    """What is measured, how long, and where it goes."""
    add = parser.add_argument
    add(
        "--output",
        required=True,
        metavar="FILE",
        help="the tuning table; entries of other clusters stay in it",
    )
    add(
        "--collectives",
        default="allreduce,reduce_scatter,allgather,bcast",
        metavar="A,B",
        help="collectives to tune",
    )
    add_shared(parser, "--dtype", sizes="1K:16M", factor=4, min_time=2.0)
    add("--segments", default="16K,60000,256K,1M", metavar="A,B", help="segment sizes to try")
    add(
        "--compression",
        metavar="A,B",
        help="also find the size from which compression saves time between nodes: int8,int4",
    )
    add("--device", default="cpu", help="memory of the arrays: cpu, cuda")
    add("--nccl", action="store_true", help="with --device cuda: NCCL is a candidate too")
    add(
        "--network",
        metavar="MODEL.json",
        help="predict on a cluster that `mpicoll doctor --output` measured, and measure nothing",
    )
    add(
        "--ranks",
        metavar="A,B",
        help=f"with --network: numbers of ranks (default {_RANKS})",
    )
    add("--ranks-per-node", type=whole, metavar="N", help="with --network (default: the model's)")
    add("--plot", metavar="FILE.svg", help="draw the choices of the table over bytes and ranks")
    add_shared(parser, "--done")


def run(arguments: Namespace) -> None:
    """Measure or predict, print what wins, and write."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    from ..bench import tuning
    from ..communicator import Communicator
    from ..measure import measured_on
    from ..select import table
    from ..support.arrays import element_type
    from ..support.gpus import device_module

    comm = Communicator(MPI.COMM_WORLD)
    root = comm.Get_rank() == 0
    output = Path(arguments.output)
    names = [measured(name.strip()).name for name in arguments.collectives.split(",")]
    sizes = parse_sizes(arguments.sizes, arguments.factor)
    segments = parse_sizes(arguments.segments, option="--segments")
    dtype = element_type(arguments.dtype)
    facts = measured_on(comm)
    must_take_time(arguments.min_time)
    if not arguments.network and (arguments.ranks or arguments.ranks_per_node is not None):
        raise ArgumentError(
            "--ranks and --ranks-per-node need --network: what is measured has the ranks of mpiexec"
        )
    if arguments.nccl and arguments.device == "cpu":
        raise ArgumentError("--nccl needs arrays in device memory: add --device cuda")
    codes = arguments.compression.split(",") if arguments.compression else []
    compressions = [codes_of(name.strip()).name for name in codes]
    if compressions and facts["nodes"] == 1:
        raise ArgumentError("--compression: expected ranks on several nodes, got one")
    outfiles.check(arguments, comm)
    if root:
        _check_table(output)
    module = device_module(arguments.device, comm)
    tick = _progress(sum(len(tuning.sizes_of(name, sizes)) for name in names), root)
    if arguments.network:
        entries, link = _predicted(arguments, names, sizes, segments), None
    else:
        entries, link = tuning.tune(
            comm, names, sizes, segments, dtype, arguments.min_time, tick, module, arguments.nccl,
            compressions,
        )  # fmt: skip
    if root:
        table.write(output, facts, entries, link)
        if arguments.plot:
            written = table.parse(output.read_text(encoding="utf-8"), str(output)).entries
            here = entries[0]["mpi"], entries[0]["transport"]
            draw_table(
                arguments.plot,
                [
                    entry
                    for entry in written
                    if (entry.mpi, entry.transport) == here and isinstance(entry.ranks, int)
                ],
                " over ".join(here),
            )
        print(
            *_summary(entries),
            f"written to {output}; use it with MPICOLL_TUNING_FILE={output}",
            sep="\n",
        )


def _predicted(
    arguments: Namespace,
    names: Iterable[CollectiveName],
    sizes: list[int],
    segments: list[int],
) -> list[dict[str, Any]]:
    """The entries by simulation, for each number of ranks."""
    from ..bench import predicted_entry

    model = read_model(arguments.network)
    counts = [parsed("--ranks", _count, word) for word in (arguments.ranks or _RANKS).split(",")]
    each = arguments.ranks_per_node
    return [
        predicted_entry(model, name, count, sizes, segments, each)
        for count in counts
        for name in names
    ]


def _count(text: str) -> int:
    """A number of ranks."""
    if not text.strip().isdecimal() or int(text) < 2:
        raise ArgumentError(f"expected numbers of ranks from 2 up, got {text!r}")
    return int(text)


def _check_table(output: Path) -> None:
    """What cannot be extended or written is an error before the measurement."""
    from ..select import table

    if os.path.exists(output) and output.stat().st_size:
        try:
            table.parse(output.read_text(encoding="utf-8"), str(output))
        except (OSError, ArgumentError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ArgumentError(
                f"--output {output} is there and is no tuning table: {reason}; name another file"
            ) from None


def _progress(total: int, shown: bool) -> Callable[[list[dict[str, Any]]], None]:
    """A function that says what a measured size has shown, and how many are left."""
    done: list[list[dict[str, Any]]] = []

    def tick(rows: list[dict[str, Any]]) -> None:
        done.append(rows)
        best = min(rows, key=lambda row: row["median_us"])
        native = next((row for row in rows if row["algorithm"] == NATIVE), None)
        pieces = (
            f" in pieces of {format_bytes(best['segment_bytes'])}" if best["segment_bytes"] else ""
        )
        took = format_seconds(native["median_us"] / 1e6) if native else "cannot serve it"
        if shown:
            print(
                f"[{len(done)}/{total}] {best['collective']} {format_bytes(best['bytes'])}:"
                f" {best['algorithm']}{pieces} {format_seconds(best['median_us'] / 1e6)}, native"
                f" {took}, of {many(len(rows), 'candidate')}",
                flush=True,
            )

    return tick


def _summary(entries: Iterable[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        place = (
            f"{many(entry['ranks'], 'rank')}, {many(entry['nodes'], 'node')}, {entry['mpi']},"
            f" {entry['transport']}"
        )
        yield f"{entry['collective']} on {place}:"
        for rule in entry["rules"]:
            pieces = (
                f" in pieces of {format_bytes(rule['segment_bytes'])} bytes"
                if "segment_bytes" in rule
                else ""
            )
            yield f"  from {rule['from']:>4}: {rule['algorithm']}{pieces}"
        for name, low in entry.get("compressed_from", {}).items():
            yield f"  compressed, {name}: {'never' if low == 'inf' else f'from {low} bytes'}"
