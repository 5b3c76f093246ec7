"""Findings about collectives, and the machine that all nodes may share."""

from __future__ import annotations

from collections.abc import Iterator

from ..support.units import format_bytes, format_seconds, many
from .finding import NOTE, Finding
from .records import CollectiveResult, Measured

#: what an Allreduce may take longer than the links need
COLLECTIVE = 1.5


def collectives(measured: Measured) -> Iterator[Finding]:
    for result in measured.collectives:
        gain = result.native / result.auto if result.auto else 1.0
        behind = result.bound and result.native > COLLECTIVE * result.bound
        if gain < 1.2 and not behind:
            continue
        yield Finding(
            NOTE,
            "collective",
            collective_text(result),
            many(len(measured.ranks), "rank"),
            (
                f"{format_seconds(result.native - result.auto)} in each call"
                if gain > 1
                else "the time of each call"
            ),
            (
                "use mpicoll.Communicator in the program, which chose"
                f" {result.algorithm}; `mpicoll tune` measures all sizes"
                if gain >= 1.2
                else "see the links above first; `mpicoll tune` measures all algorithms"
            ),
        )


def collective_text(result: CollectiveResult) -> str:
    """What a collective takes, in a sentence."""
    name = f"MPI_{result.collective.capitalize()} of {format_bytes(result.nbytes)}"
    if result.bound:
        return (
            f"{name} takes {result.native / result.bound:.2f} times what the links allow; mpicoll"
            f" takes {result.auto / result.bound:.2f}"
        )
    return f"{name} takes {format_seconds(result.native)}; mpicoll {format_seconds(result.auto)}"


def shared_kernel(measured: Measured) -> Iterator[Finding]:
    if measured.one_kernel:
        yield Finding(
            NOTE,
            "one-kernel",
            f"{many(len(measured.hosts), 'node')} share one kernel: containers or namespaces of one"
            " machine",
            ", ".join(measured.hosts[:8]) + (", …" if len(measured.hosts) > 8 else ""),
            "their ranks share cores, so latencies are the scheduler's and are not compared",
            "nothing, where that is meant",
        )
