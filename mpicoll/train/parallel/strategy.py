"""Strategies: one model, its reducer, its optimizer step and its loader, made to fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from math import fsum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy
from mpi4py import MPI

from ...buffers import compression_of
from ...codes import CompressionName
from ...collectives import CollectiveName
from ...support.arrays import Array, element_type, module_of
from ...support.checks import must_agree, ranks_text, together
from ...support.units import many
from ..data import Batch, LocalLoader, ScatteringLoader
from ..model import AnyModel
from ..monitor import Meter
from ..optim import Optimizer
from ..options import Options
from .backup import Backup
from .buckets import BucketLayout
from .feedback import Remainder
from .hooks import ReducerHooks
from .optimizer_step import Readable, Update
from .reducer import GO_ON, Reducer, StaleParameters

if TYPE_CHECKING:
    from ...communicator import Communicator


#: the vector of a checkpoint that has what codes lost: of all elements, rank by rank
_RESIDUALS = "residuals"
#: of a checkpoint, by name: elements of all ranks, and this rank's pieces as (start, array)
Vectors: TypeAlias = dict[str, tuple[int, list[tuple[int, Array]]]]


class Survival(Protocol):
    """What a training keeps of its fits for when ranks die."""

    #: whether the state is whole: not where a checkpoint is being read, or is to be
    whole: bool
    #: of each time that ranks were lost: `ranks` left, last completed `step`, `seconds` taken
    recoveries: list[dict[str, Any]]

    def open(self, losses: Sequence[float]) -> None:
        """A fit begins, after steps of these losses. Local."""

    def secure(self, losses: Sequence[float]) -> None:
        """The state is that with which its steps begin. Collective."""

    def wait(self) -> None:
        """The steps are over. Collective."""


class Strategy:
    """Every rank computes its share of each batch and ends each step with the same parameters.

    All calls are collective.

    model: its first parameters are those of rank 0; it then lives in the reducer's buffers.
    group: the ranks that take each step together, where these are not all.
    """

    def __init__(
        self,
        model: AnyModel,
        optimizer: Optimizer,
        comm: Communicator,
        options: Options,
        group: Communicator | None = None,
    ) -> None:
        self.model = model
        self.comm = comm
        self.options = options
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        values = model.parameters
        module = module_of(values)
        stored = element_type(options.precision)
        comm.Bcast(values, root=0, algorithm="binomial")
        self.meter = Meter(comm, module)
        of_group = options if group is None else options.of_group
        group = comm if group is None else group
        like = module.empty(0, stored)
        self.reducer = Reducer(model.tensors, self._order(), like, group, self.meter, of_group)
        flat = self.reducer.parameters
        for plain, first, count in self.reducer.layout.runs():
            flat[first : first + count] = values[plain : plain + count]
        if not options.counted:  # a library moves the buckets: the least that it can send
            self.meter.estimate = self.predicted_bytes()
        # 16 bits or codes on the wire, float32 here
        masters = values.dtype != stored or options.parameter_compression is not None
        self.update = together(comm, lambda: Update(optimizer, self.reducer, masters, of_group))
        self.hooks = ReducerHooks(model, self.reducer, values.dtype)
        model.lend(self.reducer.plain, self.hooks)
        loader = ScatteringLoader if options.served else LocalLoader
        self.loader = loader(comm, flat, values.dtype, self.meter)
        #: of each step those of its micro-batches on this rank, or that of the whole batch
        self._losses: list[list[float]] = []
        self.backup = Backup(self.update, options) if of_group.elastic else None
        #: with elastic
        self.survival: Survival | None = self.backup

    def _order(self) -> list[int]:
        """Numbers of the tensors in the order in which backward finishes them."""
        if self.options.served:
            return []
        # of rank 0: a model may decide by chance
        finished = self.comm.bcast(self.model.backward_order())
        # it may have left some out
        layers = dict.fromkeys([*finished, *reversed(range(len(self.model.layers)))])
        return [
            number
            for layer in layers
            for number, tensor in enumerate(self.model.tensors)
            if tensor.layer == layer
        ]

    def predicted_bytes(self) -> int | None:
        """Bytes that a rank sends per step in theory; None for a parameter server."""
        options = self.options
        parameters = self.reducer.parameters
        if options.served:
            return None
        times = options.accumulate if options.scattered else 1
        words = max(2, 8 // parameters.itemsize) if self.comm.reproducible else 1
        reductions = {"allreduce": 2, "reduce_scatter": 1}[options.collectives[0]] * times * words
        of_all = partial(bytes_on_the_wire, self.reducer.layout, self.size, parameters.itemsize)
        sent = reductions * of_all(options.compression)
        sent += options.sharded * of_all(options.parameter_compression)
        return (self.size - 1) * sent // self.size

    def step(self, batches: Sequence[Batch], samples: int) -> float:
        """One update from this rank's micro-batches, of a batch of `samples` on all ranks together.

        Returns the loss of the batch as far as this rank knows it. Raises BadGradient, on all
        ranks, for the step before.
        """
        update = self.update
        backup = self.backup
        self.reducer.scaled(update.loss_scale)
        losses = self._learn(batches, samples)
        own_loss = sum(losses) * samples / max(1, rows_of(batches))

        # the vote of the step before is over by now: asked for earlier, ranks would wait for it
        update.confirm()
        if backup is not None:
            losses = [backup.complete(losses)]

        factor = update.prepare()
        if factor is not None:  # else all ranks skip the step
            update.apply(factor)
            if backup is not None:
                backup.add(self.reducer.remainder)
            self.reducer.commit()
        self._losses.append(losses)
        if backup is not None:
            backup.record(losses[0], factor)
        if factor is not None:
            update.publish()
        if backup is not None:
            backup.send()
        return own_loss

    def _learn(self, batches: Sequence[Batch], samples: int) -> list[float]:
        """Send the gradients of this rank's micro-batches; returns their parts of the loss."""
        losses = []
        for number, (features, labels) in enumerate(batches):
            self.reducer.begin(number == 0, number == len(batches) - 1)
            with self.meter.computing("forward and backward"):
                losses.append(
                    self.model.learn(
                        features, labels, samples, self.hooks, self.update.loss_scale
                    )
                )
            self.reducer.end()
        return losses

    def confirm(self) -> None:
        """Raise BadGradient, on all ranks, where any could not make its part of an update."""
        self.update.confirm()

    def meets(self, step: int) -> bool:
        """Whether all ranks wait for each other in this step, counted from 1, in any case."""
        return True

    def named(self) -> dict[str, Array]:
        """The parameters by name, where a program reads and writes them. Local."""
        self.reducer.wait()
        return self.reducer.named()

    def common(self) -> tuple[Array, dict[str, Array]]:
        """The parameters that all ranks have alike between two steps: flat, and by name."""
        return self.reducer.parameters, self.named()

    def finish(self) -> None:
        """The steps of a fit are over. Does nothing the second time."""

    def report(self) -> dict[str, Any]:
        """What `Trainer.report` says of this strategy alone."""
        return {} if self.backup is None else self.backup.report()

    def settle(self) -> None:
        """Bring to its end what an exception has left under way in a step. Collective.

        No parameter is read.
        """
        self.reducer.abandon()

    def is_whole(self) -> bool:
        """Whether no exception has left an update of this rank half made."""
        return self.reducer.is_current()

    def take_up(self) -> list[float]:
        """Continue after an exception that left a step: the losses of the completed steps.

        Collective, after `settle`.

        Raises ArgumentError where ranks have not made the same updates, StaleParameters where one
        has made half of it.
        """
        steps = self.update.optimizer.steps
        mine = self.is_whole(), {"the updates that were made": steps}, len(self._losses)
        wholes, everyone, lengths = zip(*self.comm.allgather(mine))
        if not all(wholes):
            torn = [rank for rank, is_whole in enumerate(wholes) if not is_whole]
            raise StaleParameters(
                f"{ranks_text(torn)}: expected a whole update {steps}, got half of it, which an "
                f"exception has ended: {GO_ON}"
            )
        must_agree(everyone, f"An exception has left them in different steps: {GO_ON}")
        del self._losses[min(lengths) :]
        return self.reduce_losses()

    def replaced(self) -> None:
        """All parameters on this rank are those of a checkpoint. Collective.

        Where they are sent in codes, ranks compute with what is decoded of these.
        """
        self.reducer.replaced()
        if self.options.parameter_compression is not None:
            self.reducer.invalidate()
            self.reducer.publish()

    def forget(self) -> None:
        """Drop what the steps have left: parameters and state are about to be replaced.

        Collective, after `settle`.
        """
        self._losses = []

    def reduce_losses(self) -> list[float]:
        """Losses of the batches since the last call, equal on all ranks.

        All parameters have come then.

        Raises BadGradient, on all ranks, for the last step.
        """
        self.confirm()
        self.reducer.wait()
        losses = [sum(step) for step in self._losses]
        if self.backup is None and self.options.micro_batches is not None:
            everyone = self.comm.allgather(self._losses)
            # exact but for one rounding
            losses = [fsum(chain.from_iterable(step)) for step in zip(*everyone)]
        elif self.backup is None:
            sums = numpy.array(losses, "f8")
            self.comm.Allreduce(MPI.IN_PLACE, sums, algorithm="recursive_doubling")
            losses = sums.tolist()
        self._losses = []
        return losses

    def count_correct(self) -> int | None:
        """Correct answers on the test data, or None where the model does not tell."""
        blocks = self.loader.test(self.options.micro_batches)
        counts = [self.model.count_correct(*block, hooks=self.hooks) for block in blocks]
        known = [count for count in counts if count is not None]
        everyone = self.comm.allgather(sum(known) if len(known) == len(counts) else None)
        return None if None in everyone else sum(everyone)

    # Checkpoints.

    def vectors(self) -> Vectors:
        """This rank's share of the state, in plain order."""
        elements = self.reducer.layout.elements
        state = {name: (elements, pieces) for name, pieces in self.update.vectors().items()}
        feedback = self.reducer.feedback
        if feedback is not None:
            start = self.rank * elements
            residuals = [(start + plain, part) for plain, part in feedback.vector()]
            state[_RESIDUALS] = (self.size * elements, residuals)
        remainder = self.reducer.remainder
        if remainder is not None:  # as that of one rank
            state[_RESIDUALS] = (elements, [] if self.rank else [(0, remainder.values)])
        return state

    def restore(self, checkpoint: Readable, steps: int) -> None:
        """Take the state from a checkpoint, and the number of updates. Local.

        Each former rank's residuals are added to those of one rank now: their sum stays where there
        were more or fewer ranks. A checkpoint may have none. Without error feedback now their sum
        goes to the next update, unless that is to be reproducible: the residuals are not.
        """
        self.update.restore(checkpoint, steps)
        layout = self.reducer.layout
        elements = layout.elements
        former = checkpoint.totals.get(_RESIDUALS, 0) // max(1, elements)
        self.reducer.remainder = None
        feedback = self.reducer.feedback
        if feedback is not None:
            feedback.clear()
            for rank in range(self.rank, former, self.size):
                feedback.add(checkpoint.read(_RESIDUALS, rank * elements, (rank + 1) * elements))
        elif former and not self.options.reproducible:
            total = numpy.zeros(elements, "f4")
            for rank in range(former):
                total += checkpoint.read(_RESIDUALS, rank * elements, (rank + 1) * elements)
            self.reducer.remainder = Remainder(layout, total)

    def describe(self) -> str:
        """Which collectives run in each step."""
        options = self.options
        if options.served:
            return "parameter_server (scatterv linear, gather linear, bcast binomial)"
        used = ", ".join(self._described(name) for name in options.collectives)
        return (
            f"{options.strategy} ({used}; {many(len(self.reducer.layout.buckets), 'bucket')}, "
            f"overlap {options.overlap})"
        )

    def _described(self, collective: CollectiveName) -> str:
        """A collective with its algorithm and what it sends."""
        options = self.options
        words = [collective, options.algorithms[collective]]
        if compression := options.compressions[collective]:
            words += ["of", compression]
            if options.error_feedback and collective != "allgather":
                words += ["with error feedback"]
        return " ".join(words)


def bytes_on_the_wire(
    layout: BucketLayout, ranks: int, itemsize: int, compression: CompressionName | None
) -> int:
    """Bytes of all buckets, with codes in those that are compressed: whole groups of each rank."""
    if compression is None:
        return layout.size * itemsize
    codes = compression_of(compression)
    nbytes = 0
    for bucket in layout.buckets:
        if bucket.is_exact:
            nbytes += bucket.size * itemsize
        else:
            nbytes += ranks * codes.groups(-(-bucket.size // ranks)) * codes.nbytes
    return nbytes


def rows_of(batches: Sequence[Batch]) -> int:
    """Samples of some micro-batches."""
    return sum(len(labels) for _, labels in batches)
