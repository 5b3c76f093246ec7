"""One collective over a network, by everything that can serve it: MPI, MPI forced, gloo, ours.

    mpicoll cluster --hosts 7 --rate 500mbit --mpi openmpi -- \\
        python -m benchmarks.run.collective --link 500mbit …

Candidates alternate in shuffled order; times are the maximum over ranks. `native` runs twice, under
two names: how far the two are apart is the noise of the run. `auto` is a call without options. A
candidate that takes more than twice as long as the fastest in two trial calls is left at that, and
at a megabyte and above not tried at larger sizes. With --split, blocks are of uneven size, and the
methods are those that take counts: Allgatherv and its like. With --compression, calls without
other options are also run compressed, on normally distributed data, and their errors are among the
results.
"""

import argparse
import json
from contextlib import ExitStack

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, algorithms, install_abort_hook
from mpicoll.bench import SPLITS, Candidate, compare, method_of
from mpicoll.cli.options import parse_sizes
from mpicoll.cluster import goodput, lead
from mpicoll.errors import ArgumentError
from mpicoll.execute import native_method
from mpicoll.measure import measured_on
from mpicoll.support.units import format_bytes, parse_rate

from ..peers.forced import COLLECTIVES, CUT, forced
from ..peers.gloo import Gloo

LARGE = 1 << 20
HOPELESS = 2.0


def main():
    """Measure, print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    rows = []
    hopeless = set()
    facts = measured_on(comm)
    if options.link != "none":
        rate = parse_rate(options.link)
        facts |= {"link": options.link, "goodput": goodput(rate), "burst": lead(rate)}
    facts["placement"] = options.placement
    with ExitStack() as stack:
        candidates = _candidates(comm, options, stack)
        for nbytes in parse_sizes(options.sizes, options.factor):
            tried = [
                one for one in candidates if (one.algorithm, one.segment_bytes) not in hopeless
            ]
            found = compare(
                comm,
                options.collective,
                tried,
                nbytes,
                np.dtype(np.float32),
                seconds=options.min_time,
                hopeless=None if options.keep else HOPELESS,
                least=options.least,
                in_place=options.collective == "allreduce",
                split=options.split,
            )
            if nbytes >= LARGE:
                hopeless |= {
                    (one.algorithm, one.segment_bytes) for one in tried if _hopeless(one, found)
                }
            rows += found
            _print(comm, found)
    if comm.Get_rank() == 0 and options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "environment": facts, "results": rows}, file, indent=1)


def _hopeless(candidate, rows):
    cut = candidate.segment_bytes
    return any(
        row.get("hopeless")
        for row in rows
        if row["algorithm"] == candidate.algorithm and (cut is None or row["segment_bytes"] == cut)
    )


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--collective", default="allreduce")
    add("--algorithms", help="words of ours (default: all)")
    add("--sizes", default="1K:16M")
    add("--factor", type=int, default=4)
    add("--min-time", type=float, default=3.0, help="seconds per size (default 3)")
    add("--least", type=int, default=5, help="repetitions (default 5)")
    add("--peers", default="forced,gloo", help="forced,gloo (default), or none")
    add("--link", default="none", help="the cluster's --rate, for the record")
    add("--placement", default="node", help="the cluster's --placement, for the record")
    add("--split", default="even", choices=SPLITS, help="how the vector is dealt out to ranks")
    add("--forced-segments", help="force MPI's algorithms in these pieces too, where they are cut")
    add("--compression", default="", metavar="A,B", help="int8,int4: also run compressed calls")
    add("--segments", help="try these pieces for each of --algorithms, instead of those selected")
    add("--keep", action="store_true", help="measure hopeless candidates as often as the others")
    add("--json")
    return parser.parse_args()


def _candidates(comm, options, stack):
    """Everything that could serve the collective."""
    name = options.collective
    plain = Candidate(
        "native again", make=lambda case: _on(case, native_method(comm, case.method)), always=True
    )
    words = (
        options.algorithms.split(",")
        if options.algorithms
        else [each.name for each in algorithms.proposed(name)]
    )
    segments = parse_sizes(options.segments) if options.segments else [None]
    found = [Candidate("native", always=True), plain, Candidate("auto", always=True)]
    names = list(filter(None, options.compression.split(",")))
    found += [Candidate("auto", compression=codes, always=True) for codes in names]
    found += [Candidate(word, segment) for word in words for segment in segments]
    if "forced" in options.peers:
        found += _forced_candidates(comm, options, stack)
    if "gloo" in options.peers and name in ("allreduce", "bcast"):
        gloo = stack.enter_context(Gloo(comm))
        found.append(Candidate("gloo", make=lambda case: _gloo(gloo, name, case), always=True))
    return found


def _forced_candidates(comm, options, stack):
    """MPI's own algorithms, whole and in the pieces asked for."""
    word = method_of(options.collective, options.split).lower()
    if word not in COLLECTIVES:
        return
    library = stack.enter_context(forced(comm, word))
    for label, one in library.items():
        yield Candidate(f"native {label}", make=_forced(one), within=one.selected)
    for nbytes in parse_sizes(options.forced_segments) if options.forced_segments else ():
        library = stack.enter_context(forced(comm, word, nbytes))
        for label in filter(CUT.__contains__, library):
            one = library[label]
            yield Candidate(
                f"native {label} {format_bytes(nbytes)}", make=_forced(one), within=one.selected
            )


def _on(case, method):
    return lambda: method(*case.arguments)


def _forced(one):
    """A function of the case that makes the call, or None where the library refuses it."""

    def make(case):
        case.prepare(poison=False)
        try:
            one(*case.arguments)
        except ArgumentError:
            return None
        return _on(case, one.function)

    return make


def _gloo(gloo, name, case):
    array = case.memory
    return (
        (lambda: gloo.allreduce(array))
        if name == "allreduce"
        else (lambda: gloo.bcast(array, case.root))
    )


def _print(comm, rows):
    if comm.Get_rank():
        return
    native = rows[0]["median_us"]
    for row in sorted(rows, key=lambda row: row["median_us"]):
        what = (
            f"{format_bytes(row['bytes']):>5} {row['algorithm']:>34}"
            f" {row['segment_bytes'] or '-':>8}"
        )
        times = (
            f"{row['median_us']:11.1f} us (least {row['min_us']:.1f})"
            f" x{native / row['median_us']:.2f}"
        )
        errors = ""
        if "compression" in row:
            part = f"{row['of_bound']:.2f} of the bound"
            errors = f"{row['compression']}, RMS error {row['rms_error']:.2g}, {part}"
        print(
            what,
            times,
            f"wrong {row['wrong']} n {row['repeats']} {row.get('chose', '')}",
            errors,
            flush=True,
        )


if __name__ == "__main__":
    main()
