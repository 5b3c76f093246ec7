"""Tuning: measures candidates, finds the fastest per size, and fits the cost model."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .. import algorithms, collectives
from ..algorithms import NATIVE, NCCL
from ..errors import MpicollError
from ..execute import Context
from ..select import rules_of
from ..simulate import closed_form
from ..support.units import format_bytes
from ..transport import Topology
from .compare import Candidate, compare

Rows = list[dict[str, Any]]  # entries of `bench --json`
Tick = Callable[[Rows], object]
Winner = tuple[str, int | None]  # algorithm, segment_bytes

#: after two trial calls, a candidate that is so many times slower than the fastest is skipped
HOPELESS = 2.0
#: a candidate that is at most so many times slower than the fastest counts as equal to it
EQUAL = 1.03


def candidates(
    collective: collectives.CollectiveName,
    size: int,
    nbytes: int,
    segments: Sequence[int],
    nccl: bool = False,
) -> list[Candidate]:
    """MPI's own call, every proposed algorithm whole and segmented, and NCCL."""
    made = [Candidate(NATIVE)]
    for algorithm in algorithms.proposed(collective):
        made += [Candidate(algorithm.name, cut) for cut in cuts(algorithm, size, nbytes, segments)]
    if nccl and NCCL in algorithms.library_names(collective):
        made.append(Candidate(NCCL))
    return made


def cuts(
    algorithm: algorithms.Algorithm, size: int, nbytes: int, segments: Sequence[int]
) -> list[int]:
    """The segment sizes to try; 0 is whole messages.

    Of algorithms that need none, a size that divides a rank's share of the vector is tried.
    """
    if algorithm.blocks == "segments":
        return [segment for segment in segments if segment < nbytes]
    share = max(nbytes // size, 1) if algorithm.cuttable else 0
    return [0, *(segment for segment in segments if segment < share)]


def sizes_of(collective: str, sizes: Sequence[int]) -> Sequence[int]:
    """Those of these numbers of bytes that make a difference: a barrier has none, and one size."""
    return [0] if collective == collectives.BARRIER.name else sizes


def measure(
    comm: Any,
    collective: collectives.CollectiveName,
    sizes: Sequence[int],
    segments: Sequence[int],
    dtype: "np.dtype[Any]",
    seconds: float,
    tick: Tick = lambda rows: None,
    module: ModuleType = np,
    nccl: bool = False,
) -> Rows:
    """Entries of `bench --json` for all candidates at all sizes. Collective over a `Communicator`.

    seconds: per size, for all candidates together but hopeless ones. tick(rows): called after each
    size. module: of the arrays. nccl: whether NCCL is a candidate.
    """
    rows: Rows = []
    for nbytes in sizes_of(collective, sizes):
        tried = candidates(collective, comm.Get_size(), nbytes, segments, nccl)
        results = _measured(comm, collective, tried, nbytes, dtype, seconds, module)
        tick(results)
        rows += results
    return rows


def _measured(
    comm: Any, collective: str, tried: list[Candidate], nbytes: int, dtype: "np.dtype[Any]",
    seconds: float, module: ModuleType,
) -> Rows:  # fmt: skip
    """Entries of all candidates at one size; hopeless ones are left early."""
    return compare(
        comm, collective, tried, nbytes, dtype, seconds=seconds, hopeless=HOPELESS, module=module)


def entry(topology: Topology, collective: str, rows: Rows) -> dict[str, Any]:
    """The table's entry for this topology, from measured rows in ascending size."""
    winners: list[tuple[int, str, int | None]] = []
    before: Winner = (NATIVE, None)
    for nbytes in dict.fromkeys(row["bytes"] for row in rows):
        correct = [row for row in rows if row["bytes"] == nbytes and not row["wrong"]]
        if not correct:
            what = f"{collective} of {nbytes} bytes"
            raise MpicollError(
                f"{what}: every algorithm gave a wrong result, so none can be chosen"
            )
        before = winner(correct, before)
        winners.append((nbytes, *before))
    return {
        "mpi": topology.library,
        "transport": topology.transport,
        "ranks": len(topology.nodes),
        "nodes": topology.node_count,
        "collective": collective,
        "rules": rules_of(winners),
    }


def winner(rows: Rows, before: Winner) -> Winner:
    """(algorithm, segment_bytes) of the fastest.

    Of equals MPI's own call is preferred, then the winner of the size before.
    """
    fastest = min(rows, key=lambda row: row["median_us"])
    limit = EQUAL * fastest["median_us"]
    equals = [(row["algorithm"], row["segment_bytes"]) for row in rows if row["median_us"] <= limit]
    for favourite in ((NATIVE, None), before):
        if favourite in equals:
            return favourite
    return fastest["algorithm"], fastest["segment_bytes"]


def compressed_from(
    comm: Any, collective: collectives.CollectiveName, names: Sequence[str], rows: Rows,
    dtype: "np.dtype[Any]", seconds: float, module: ModuleType = np,
) -> dict[str, str]:  # fmt: skip
    """From how many bytes each compression saves time: what an entry has as `compressed_from`.

    At each size every compressible algorithm is compared with the fastest of the exact ones. It
    must save time at all larger sizes, too; "inf" where it does not at the largest.
    Collective over a `Communicator`.

    names: of compressions. rows: of the exact algorithms, in ascending size.
    """
    able = [each.name for each in algorithms.proposed(collective) if each.compressible]
    lows = dict.fromkeys(names, "inf") if able else {}
    saving = list(lows)
    for nbytes in sorted({row["bytes"] for row in rows}, reverse=True):
        if not saving:
            break
        exact = [row for row in rows if row["bytes"] == nbytes and not row["wrong"]]
        best = min(exact, key=lambda row: float(row["median_us"]))
        tried = [Candidate(best["algorithm"], best["segment_bytes"], always=True)]
        tried += [Candidate(word, compression=name) for name in saving for word in able]
        results = _measured(comm, collective, tried, nbytes, dtype, seconds, module)
        limit = results[0]["median_us"] / EQUAL
        fast = [row for row in results[1:] if row["median_us"] < limit and not row["wrong"]]
        saving = [name for name in saving if name in {row["compression"] for row in fast}]
        lows |= dict.fromkeys(saving, format_bytes(nbytes))
    return lows


def fit(topology: Topology, rows: Rows) -> dict[str, Any] | None:
    """An entry of `links`: the cost model's alpha, bandwidth and gamma, fitted to the times.

    Least squares of relative errors over unsegmented algorithms with a formula; no figure is
    negative. None where the messages were too short to show a bandwidth.
    """
    size = len(topology.nodes)
    equations: list[list[float]] = []
    for row in rows:
        cost = closed_form(row["collective"], row["algorithm"], size)
        if cost and row["segment_bytes"] is None:
            seconds = row["median_us"] * 1e-6
            amounts = cost.rounds, cost.sent * row["bytes"], cost.reduced * row["bytes"]
            equations.append([amount / seconds for amount in amounts])
    alpha, beta, gamma = _not_negative(np.array(equations)) if equations else (0.0, 0.0, 0.0)
    if not beta:
        return None
    return {
        "mpi": topology.library,
        "transport": topology.transport,
        "alpha": alpha,
        "bandwidth": 1 / beta,
        "gamma": gamma,
    }


def _not_negative(equations: "np.ndarray[Any, Any]") -> list[float]:
    """Least-squares x >= 0 of equations · x = 1.

    The most negative unknown is fixed at 0 and the rest solved again, until none is negative.
    """
    unknowns = list(range(equations.shape[1]))
    solution = np.zeros(equations.shape[1])
    scale = np.abs(equations).max(axis=0) + 1e-300
    while unknowns:
        values = np.linalg.lstsq(
            equations[:, unknowns] / scale[unknowns], np.ones(len(equations)), rcond=None
        )[0]
        if (values >= 0).all():
            solution[unknowns] = values / scale[unknowns]
            break
        unknowns.pop(int(values.argmin()))
    return [float(value) for value in solution]


def tune(
    comm: Any,
    names: Sequence[str],
    sizes: Sequence[int],
    segments: Sequence[int],
    dtype: "np.dtype[Any]",
    seconds: float,
    tick: Tick = lambda rows: None,
    module: ModuleType = np,
    nccl: bool = False,
    compressions: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """(entries, link) for the table. Collective over a `Communicator`.

    names: of collectives; compressions: that are compared with the exact algorithms; the other
    arguments are those of `measure`.
    """
    topology = Context.of(comm).topology
    entries: list[dict[str, Any]] = []
    everything: Rows = []
    for name in names:
        full_name = collectives.find(name).name
        rows = measure(comm, full_name, sizes, segments, dtype, seconds, tick, module, nccl)
        made = entry(topology, name, rows)
        if lows := compressed_from(comm, full_name, compressions, rows, dtype, seconds, module):
            made["compressed_from"] = lows
        entries.append(made)
        everything += rows
    return entries, fit(topology, everything)
