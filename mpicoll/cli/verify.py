"""prove every algorithm at every size up to --max-size; exit status 1 at the first wrong one."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError, did_you_mean
from ..graphs import NEIGHBORHOODS
from ..verify import check_cases, check_msccl, prove_graph
from ..support.files import named
from ..support.units import format_bytes, many
from . import outfiles, userfile
from .graphfile import must_lack, read_graph
from .options import add_shared
from .values import whole


#: ranks up to which algorithms are proved, where no number is given
_MAX_SIZE = 64


def add_arguments(parser: ArgumentParser) -> None:
    """Up to which size, and whose algorithms."""
    add = parser.add_argument
    add("words", nargs="*", metavar="WORD", help="collectives, algorithms, or both (default: all)")
    add("--max-size", type=whole, metavar="N", help="largest number of ranks (default: 64)")
    add("--msccl", nargs="+", metavar="FILE.xml",
        help="prove the algorithms in these files of MSCCL instead of ours")
    add_shared(parser, "--graph", "--file", "--json")


def run(arguments: Namespace) -> int:
    """Print one line per algorithm, and what is wrong with the first that is."""
    outfiles.check(arguments)
    if arguments.msccl:
        if arguments.words or arguments.file:
            raise ArgumentError("--msccl: it takes neither collectives, algorithms nor --file")
        must_lack(arguments, "--msccl", "graph", "max_size")
        return _prove_files(arguments)
    if arguments.graph:
        must_lack(arguments, "--graph", "file", "max_size")
        return _run_graph(arguments)
    if arguments.max_size is None:
        arguments.max_size = _MAX_SIZE
    if arguments.max_size < 1:
        raise ArgumentError(f"--max-size: expected 1 or more ranks, got {arguments.max_size}")
    every = [
        algorithm for name in collectives.COLLECTIVES for algorithm in algorithms.registered(name)
    ]
    chosen = _named(arguments.words, userfile.load(arguments.file) if arguments.file else every)
    start = perf_counter()
    proved = []
    wrong = None
    try:
        for result in _prove(chosen, arguments.max_size):
            proved.append(result)
            print(_line(result), flush=True)
    except ScheduleError as error:
        wrong = str(error)
    seconds = perf_counter() - start
    total = sum(result["cases"] for result in proved)
    print(
        f"WRONG: {wrong}"
        if wrong
        else f"{_every(len(proved))} proved: {total:,} cases in {seconds:.1f} s"
    )
    if arguments.json:
        document = {
            "schema": 1,
            "max_size": arguments.max_size,
            "algorithms": proved,
            "cases": total,
            "seconds": round(seconds, 3),
            "wrong": wrong,
        }
        outfiles.write_json(arguments.json, document)
    return 1 if wrong else 0


def _prove_files(arguments: Namespace) -> int:
    """Print one line for each file of MSCCL; the exit status is 1 if one is wrong."""
    texts = [(path, _content(path)) for path in arguments.msccl]
    start = perf_counter()
    results = []
    for path, text in texts:
        results.append(proved_file(path, text))
        print(_line_of_file(results[-1]), flush=True)
    seconds = perf_counter() - start
    outcomes = [result["outcome"] for result in results]
    proven = outcomes.count("proven")
    print(f"{proven} of {many(len(outcomes), 'file')} proven in {seconds:.1f} s")
    if arguments.json:
        document = {"schema": 1, "files": results, "seconds": round(seconds, 3)}
        outfiles.write_json(arguments.json, document)
    return 1 if {"wrong", "malformed"} & set(outcomes) else 0


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(f"--msccl: cannot read {named(path)} ({error.strerror})") from error


def proved_file(path: str, text: bytes) -> dict[str, Any]:
    """What is proved of a file of MSCCL, or what is wrong with it, for `--json`."""
    try:
        proof = check_msccl(text)
    except ScheduleError as error:
        return {"file": path, "outcome": "wrong", "why": str(error)}
    except ArgumentError as error:
        return {"file": path, "outcome": "malformed", "why": str(error)}
    algorithm = proof.algorithm
    return {
        "file": path,
        "outcome": "proven" if proof.result else "result unknown",
        "why": None,
        "collective": algorithm.collective,
        "gpus": len(algorithm.gpus),
        "steps": algorithm.steps,
        "protocol": algorithm.protocol,
        "calls": proof.calls,
        "messages": proof.messages,
        "limit": proof.limit,
        "root": proof.root,
        "same_bits": proof.same_bits,
    }


def _line_of_file(result: dict[str, Any]) -> str:
    name = named(result["file"])
    if result["why"]:
        return f"{name}: {result['outcome'].upper()}: {result['why']}"
    words = [
        f"{name}: {result['outcome']}",
        f"{result['collective']} {' and '.join(result['calls'])}",
        many(result["gpus"], "GPU"),
        many(result["steps"], "step"),
    ]
    if result["outcome"] == "result unknown":
        words.append("no deadlock and no data race, but what this collective is, is not known")
    if result["root"] is not None:
        words.append(f"root {result['root']}")
    if result["limit"]:
        words.append(f"for vectors of at most {format_bytes(result['limit'])}")
    if not result["same_bits"]:
        words.append("sums in another order on each GPU, so maybe other bits")
    return ", ".join(words)


def _run_graph(arguments: Namespace) -> int:
    """Print one line per algorithm of neighbours on a graph, and what is wrong with the first."""
    graph, nodes = read_graph(arguments.graph)
    names = [one.name for each in NEIGHBORHOODS for one in algorithms.registered(each)]
    for word in arguments.words:
        if word not in (*NEIGHBORHOODS, *names):
            there = ", ".join([*NEIGHBORHOODS, *dict.fromkeys(names)])
            hint = did_you_mean(word, [*NEIGHBORHOODS, *names])
            raise ArgumentError(f"--graph has no {word!r}; there are: {there}{hint}")
    placements = [nodes] if nodes else [
        tuple(range(graph.size)), tuple(rank // 2 for rank in range(graph.size))
    ]
    proved: list[dict[str, Any]] = []
    wrong = None
    try:
        for placed in dict.fromkeys(placements):
            for name, algorithm, cost in prove_graph(graph, placed, arguments.words):
                proved.append({
                    "collective": name,
                    "algorithm": algorithm,
                    "ranks": graph.size,
                    "edges": graph.edges,
                    "nodes": len(set(placed)),
                    "rounds": cost.rounds,
                    "messages": cost.messages,
                })  # fmt: skip
                print(_graph_line(proved[-1]), flush=True)
    except ScheduleError as error:
        wrong = str(error)
    print(f"WRONG: {wrong}" if wrong else f"{_every(len(proved))} proved")
    if arguments.json:
        outfiles.write_json(arguments.json, {"schema": 1, "algorithms": proved, "wrong": wrong})
    return 1 if wrong else 0


def _graph_line(result: dict[str, Any]) -> str:
    on = f"{many(result['ranks'], 'rank')} on {many(result['nodes'], 'node')}"
    cost = f"{many(result['rounds'], 'round')}, at most {many(result['messages'], 'message')}"
    return (
        f"{result['collective']:<20}{result['algorithm']:<10}{on}, "
        f"{many(result['edges'], 'edge')}: {cost} sent by a rank"
    )


def _named(
    words: Sequence[str], registered: Sequence[algorithms.Algorithm]
) -> list[algorithms.Algorithm]:
    """The algorithms that the words name: by collective, by algorithm, or by both."""
    names = [*collectives.COLLECTIVES, *dict.fromkeys(one.name for one in registered)]
    for word in words:
        if word not in names:
            hint = f"see `mpicoll list`{did_you_mean(word, names)}"
            raise ArgumentError(f"no collective and no algorithm is called {word!r}; {hint}")
    collective_names = [word for word in words if word in collectives.COLLECTIVES] or list(
        collectives.COLLECTIVES
    )
    algorithm_names = [word for word in words if word not in collectives.COLLECTIVES] or names
    chosen = [
        one
        for one in registered
        if one.collective in collective_names and one.name in algorithm_names
    ]
    if not chosen:
        raise ArgumentError(f"there is no algorithm {' '.join(words)}; see `mpicoll list`")
    return chosen


def _prove(chosen: Iterable[algorithms.Algorithm], max_size: int) -> Iterator[dict[str, Any]]:
    """Check all algorithms at all sizes on all cores; yield the result of each in order."""
    sizes = range(1, max_size + 1)
    # forked, so that the workers have the algorithms of the user's file too
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("fork"))
    try:
        work = [pool.map(_check_size, repeat(a.collective), repeat(a.name), sizes) for a in chosen]
        for algorithm, results in zip(chosen, work):
            cases, ordered, canonical, quantisations = zip(*results)
            yield {
                "collective": algorithm.collective,
                "algorithm": algorithm.name,
                "max_size": max_size,
                "cases": sum(cases),
                "ordered": all(ordered),
                "canonical": all(canonical),
                "quantisations": max(quantisations) if algorithm.compressible else None,
            }
    finally:
        pool.shutdown(cancel_futures=True)


def _check_size(collective: collectives.CollectiveName, name: str, size: int) -> Any:
    return check_cases(algorithms.find(collective, name), [size])


def _every(count: int) -> str:
    return "1 algorithm" if count == 1 else f"all {count} algorithms"


def _line(result: dict[str, Any]) -> str:
    collective = collectives.find(result["collective"])
    order = "in rank order" if result["ordered"] else "in any order"
    order = "in the canonical order" if result["canonical"] else order
    proved = (
        f"{collective.name:<15}{result['algorithm']:<22}1..{result['max_size']} ranks"
        f" {result['cases']:>6} cases"
    )
    words = [proved, order] if collective.reduces else [proved]
    if result["quantisations"]:
        words.append(f"compressed: quantised {many(result['quantisations'], 'time')} at most")
    return "   ".join(words)
