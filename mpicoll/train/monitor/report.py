"""What a finished training looks like, for programs and for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mpi4py import MPI

from ...measure import measured_on, nodes
from ...schedule import bounds
from ...support.node import processors
from ...support.units import many

if TYPE_CHECKING:
    from ...communicator import Communicator

#: a rank that computes longer than this many times the median is named
_SLOW = 1.2
#: a smaller part of the communication than this is called nothing
_NOTHING = 0.05
#: communication that takes longer than this many times the computation finds little to hide behind
_LONG = 5


class Trained(Protocol):
    """What is told of a `Trainer`, which lies above this module."""

    comm: Communicator
    options: Any
    #: the options before they were fitted to the ranks
    asked: Any
    model: Any
    optimizer: Any
    strategy: Any

    @property
    def losses(self) -> list[float]: ...

    @property
    def epochs(self) -> list[dict[str, Any]]: ...

    @property
    def test_accuracy(self) -> float | None: ...

    @property
    def stopped(self) -> str | None: ...

    def report(self) -> dict[str, Any]: ...


def document(trainer: Trained, config: Mapping[str, Any], comm: MPI.Intracomm) -> dict[str, Any]:
    """The JSON document of a run (schema 1), of this rank.

    Collective over `comm`, of the trainer's ranks that live.

    A loss that is not finite, because the training diverged, is null: JSON has no infinity. So is
    the report where there was nothing left to do.
    """
    costs = None
    if trainer.strategy.meter.steps:
        costs = trainer.report() | {"skipped": _skipped(trainer), "stopped": trainer.stopped}
    return {
        "schema": 1,
        "environment": measured_on(comm),
        "config": config,
        "epochs": [epoch | {"loss": finite(epoch["loss"])} for epoch in trainer.epochs],
        "losses": [finite(loss) for loss in trainer.losses],
        "test_accuracy": trainer.test_accuracy,
        "report": costs,
    }


def finite(number: float) -> float | None:
    """The number, or None where JSON has none for it."""
    return number if math.isfinite(number) else None


def _skipped(trainer: Trained) -> int:
    """Steps without an update, because a gradient was not finite."""
    scale = trainer.strategy.update.scale
    return int(scale.skipped) if scale else 0


def summary(trainer: Trained, comm: MPI.Intracomm) -> str:
    """The same in a few lines for a person.

    Collective, see `document`: the ranks of each node are counted.
    """
    everywhere = nodes(comm)
    lines = [_outcome(trainer), *_events(trainer), _setup(trainer)]
    if trainer.strategy.meter.steps:
        report = trainer.report()
        lines += [
            *_times(trainer, report),
            *_hidden(trainer, report, everywhere),
            *_bytes(trainer, report),
            *_outer_steps(trainer, report),
            *_copies(report),
        ]
    return "\n".join(lines)


def _outcome(trainer: Trained) -> str:
    accuracy = trainer.test_accuracy
    losses = trainer.losses
    tested = "no test yet" if accuracy is None else f"test accuracy {accuracy:.4f}"
    loss = trainer.epochs[-1]["loss"] if trainer.epochs else losses[-1]
    return f"{tested}, loss {loss:.4g} after {many(len(losses), 'step')}"


def _events(trainer: Trained) -> Iterator[str]:
    """What was out of the ordinary."""
    steps = len(trainer.losses)
    if trainer.asked.compresses and not trainer.options.compresses:
        alone = trainer.comm.Get_size() == 1
        why = "there is one rank" if alone else "all ranks are on one node, where it saves no time"
        yield f"nothing is compressed: {why}"
    if not trainer.strategy.meter.steps:
        yield "nothing was left to do: the checkpoint has all steps already"
    if trainer.stopped:
        yield f"stopped by {trainer.stopped} after step {steps}; go on with --resume"
    if skipped := _skipped(trainer):
        scale = trainer.strategy.update.scale.value
        yield (
            f"{skipped} of {steps} steps skipped, because gradients were not finite; loss scale "
            f"{scale:g}"
        )


def _setup(trainer: Trained) -> str:
    ranks = trainer.comm.Get_size()
    elements = trainer.strategy.reducer.layout.elements
    return (
        f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {trainer.strategy.describe()}, "
        f"{elements:,} parameters of {trainer.options.precision}"
    )


def _times(trainer: Trained, report: Mapping[str, Any]) -> Iterator[str]:
    """Times; exposed communication is split into waiting for ranks and for the network."""
    meter = trainer.strategy.meter
    yield (
        f"{meter.total('step_s'):.2f} s training: {meter.total('compute_s'):.2f} s computing, "
        f"{meter.total('communication_s'):.2f} s communicating ({meter.total('exposed_s'):.2f} s "
        "of it exposed)"
    )
    waiting = min(report["waiting_s"], report["exposed_s"])
    ranks = f"{_ms(report['compute_min_s'])} to {_ms(report['compute_max_s'])}"
    yield (
        f"per step: {_ms(report['step_s'])}, computing {_ms(report['compute_s'])} (ranks: "
        f"{ranks}), communicating {_ms(report['communication_s'])}, exposed "
        f"{_ms(report['exposed_s'])}, of it {_ms(waiting)} waiting for the slowest rank"
    )
    ratio = (
        report["compute_max_s"] / report["compute_median_s"] if report["compute_median_s"] else 1.0
    )
    if ratio > _SLOW:
        yield (
            f"rank {report['slowest_rank']} computes {ratio:.1f} x the median: all ranks wait for "
            "it"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _hidden(
    trainer: Trained, report: Mapping[str, Any], everywhere: Sequence[tuple[str, int]]
) -> Iterator[str]:
    """How much of the communication was hidden, and where it was nothing, why."""
    hidden = report["hidden"]
    if trainer.comm.Get_size() == 1 or hidden is None:
        return
    if hidden >= _NOTHING or trainer.options.overlap == "none":
        yield f"hidden {hidden:.0%} of the communication that could be hidden"
    else:
        yield (
            f"no communication was hidden ({hidden:.0%}): "
            f"{likely_cause(trainer, report, everywhere)}"
        )


def likely_cause(
    trainer: Trained, report: Mapping[str, Any], everywhere: Sequence[tuple[str, int]]
) -> str:
    """Why nothing was hidden, in words. everywhere: (name, ranks) of each node."""
    options = trainer.options
    reducer = trainer.strategy.reducer
    cores = len(processors())
    ranks = max(count for _, count in everywhere)
    ratio = report["communication_s"] / max(report["compute_s"], 1e-9)
    causes = (
        (
            options.served,
            "a parameter server sends nothing beside computation; take another strategy",
        ),
        (
            len(trainer.model.layers) == 1,
            "a function, or a single layer, has all its gradients at once",
        ),
        (
            MPI.Query_thread() < MPI.THREAD_MULTIPLE,
            "MPI did not grant THREAD_MULTIPLE, so nothing moves meanwhile",
        ),
        (
            options.algorithm == "native",
            "MPI's own calls move little while ranks compute; take another --algorithm",
        ),
        (
            reducer.sendings == 1,
            "all gradients start together, after the last; take smaller --bucket-bytes",
        ),
        (
            ranks > cores,
            f"{ranks} ranks share {cores} cores, so communication takes the time of computation",
        ),
        (
            ratio > _LONG,
            f"communication takes {ratio:.0f} x the computation; take larger batches, or "
            "--accumulate",
        ),
    )
    return next(
        (text for true, text in causes if true),
        "the cause is not known; --trace shows when what was sent",
    )


def _bytes(trainer: Trained, report: Mapping[str, Any]) -> Iterator[str]:
    """What was sent and what is held, each with what theory says."""
    estimated = ", lower bound, not counted" if report["bytes_estimated"] else ""
    predicted = (
        ""
        if report["bytes_predicted"] is None
        else f" (theory {report['bytes_predicted']:,}{estimated})"
    )
    yield (
        f"bytes sent per step: {report['bytes_sent_per_step']:,} gradients/parameters{predicted}, "
        f"{report['data_bytes_sent_per_step']:,} data"
    )
    theory = memory_in_theory(trainer)
    held = [
        f"{report[name + '_bytes']:,} {text} (theory {theory[name]:,})"
        for name, text in (
            ("parameter", "parameters"),
            ("gradient", "gradients"),
            ("optimizer", "optimizer"),
        )
    ]
    if residuals := report["residual_bytes"]:
        held.append(f"{residuals:,} residuals of error feedback (theory {theory['residual']:,})")
    yield f"bytes held: {', '.join(held)}"
    passing = report["gradient_bytes"] - theory["gradient"]
    if trainer.options.scattered and passing > theory["gradient"]:
        largest = max(tensor.size for tensor in trainer.strategy.reducer.layout.tensors)
        share = largest / trainer.strategy.reducer.layout.elements
        why = (
            f"buckets on their way, each of whole tensors: the largest tensor is {share:.0%} of "
            "the model"
        )
        yield f"of the gradients {passing:,} are {why}; with many smaller ones less is held"


def _outer_steps(trainer: Trained, report: Mapping[str, Any]) -> Iterator[str]:
    """Of local steps: how far ranks went apart, and what outer steps hold."""
    if not trainer.options.is_local:
        return
    held = f"{report['outer_bytes']:,} bytes held for outer steps"
    drift = report["drift"]
    far = "nothing was exchanged yet" if drift is None else f"drift {drift:.2g} of the norm"
    yield f"{far}; {held}"


def memory_in_theory(trainer: Trained) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state on this rank.

    Without padding and buckets in flight.
    """
    options = trainer.options
    reducer = trainer.strategy.reducer
    update = trainer.strategy.update
    elements = reducer.layout.elements
    size = trainer.comm.Get_size()
    itemsize = reducer.parameters.itemsize
    serves = options.served
    # rank 0 has those of all, and their sum
    copies = size + 1 if serves and reducer.rank == 0 else 1
    gradients = elements * itemsize // (size if options.scattered else 1)
    if options.micro_batches is not None:  # those of each micro-batch, and their sums
        first, last = bounds(options.micro_batches, size)[reducer.rank : reducer.rank + 2]
        summed = elements // (size if options.collectives[0] == "reduce_scatter" else 1)
        gradients = itemsize * (elements * (last - first) + summed)
        copies = 1
    owned = elements // size if options.sharded else elements * (not serves or reducer.rank == 0)
    arrays = len(trainer.optimizer.slots) + (update.masters is not None)
    # before and after a step; and of an allreduce the sums that this rank sends in codes
    coded = sum(
        reducer.layout.tensors[number].size
        for bucket in reducer.layout.buckets
        for number in bucket.tensors
        if not bucket.is_exact
    )
    residuals = 2 * elements + (coded // size if options.collectives[0] == "allreduce" else 0)
    return {
        "parameter": elements * itemsize,
        "gradient": gradients * copies,
        "optimizer": arrays
        * owned
        * (itemsize if update.masters is None else update.masters.itemsize),
        "residual": 4 * residuals if options.error_feedback else 0,  # float32
    }


def _copies(report: Mapping[str, Any]) -> Iterator[str]:
    """What it costs to be ready for lost ranks, and what became of those."""
    if report.get("copy_bytes_per_step"):
        yield (
            f"copies for lost ranks, per step: {report['copy_bytes_per_step']:,} bytes sent in "
            f"{_ms(report['copy_s'])}, {_ms(report['copy_exposed_s'])} spent on it, "
            f"{report['copy_bytes_held']:,} bytes held"
        )
    for recovery in report.get("recoveries", ()):
        yield (
            f"ranks died: {recovery['ranks']} went on after step {recovery['step']}, found in "
            f"{_ms(recovery['seconds'])}"
        )
