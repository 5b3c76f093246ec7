"""Training in which ranks take steps of their own, and exchange parameters now and then."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from mpi4py import MPI

from ...communicator import release
from ...schedule import bounds
from ...support.arrays import Array
from ...support.units import many
from ..data import Batch
from ..model import AnyModel
from ..optim import Optimizer
from ..options import Options
from .backup import Window
from .optimizer_step import PARAMETERS, BadGradient, Readable
from .outer_steps import CHANGES, OuterSteps, outer_layout
from .strategy import Strategy, Vectors, bytes_on_the_wire, rows_of

if TYPE_CHECKING:
    from ...communicator import Communicator

#: what a checkpoint has of each group's own parameters, group by group
REPLICAS = "replicas"


class FitRecord:
    """How far the fits of a training are, for when ranks die: a `Survival`."""

    def __init__(self) -> None:
        self.whole = True
        self.recoveries: list[dict[str, Any]] = []
        #: whether the steps of the present fit have begun
        self.is_secure = False
        #: losses of the first steps, which all ranks know
        self.losses: list[float] = []

    def open(self, losses: Sequence[float]) -> None:
        self.losses = list(losses)
        self.is_secure = False

    def secure(self, losses: Sequence[float]) -> None:
        self.losses = list(losses)
        self.is_secure = self.whole = True

    def wait(self) -> None:
        """There is nothing to wait for."""


class LocalSteps(Strategy):
    """Each *group* of ranks, one rank or those of a node, trains a replica of the model.

    Its inner steps need no other group. `OuterSteps` bring the replicas together.
    """

    def __init__(
        self, model: AnyModel, optimizer: Optimizer, comm: Communicator, options: Options
    ) -> None:
        rank = comm.Get_rank()
        group_of = list(range(comm.Get_size()))
        if options.inner == "node":
            group_of = list(comm._context.topology.nodes)
        #: which replica this is, of how many
        self._replica = group_of[rank]
        self._replicas = max(group_of) + 1
        self._members = [other for other, group in enumerate(group_of) if group == self._replica]
        group = comm.Split(self._replica, rank)
        super().__init__(model, optimizer, comm, options, group)
        weakref.finalize(self, release, group)
        self.meter.period = options.inner_steps
        self.outer = OuterSteps(self.update, comm, self.meter, options)
        self.fits = FitRecord()
        self._former: Former | None = None
        if options.elastic:
            self.survival = self.fits

    def step(self, batches: Sequence[Batch], samples: int) -> float:
        """One inner step, and the outer steps that are due; see `Strategy.step`.

        The mean loss and its gradients are those of the samples of this group. A group whose
        gradients are not finite stops, and all ranks raise BadGradient after the next exchange.
        """
        edges = bounds(samples, self.size)
        of_group = max(1, sum(edges[member + 1] - edges[member] for member in self._members))
        rows = rows_of(batches)
        losses = [math.nan]
        steps = self.update.optimizer.steps
        if self.outer.failure is None:
            losses = self._learn(batches, of_group)
            try:
                factor = self.update.prepare()
                assert factor is not None  # there is no loss scale
                self.update.apply(factor)
                self.update.publish()
                self.update.confirm()
            except BadGradient as failure:  # on all ranks of the group
                self.outer.failure = str(failure)
        self.update.optimizer.steps = steps + 1
        own = sum(losses) * of_group
        self._losses.append([own, rows])
        self.outer.after(steps + 1)
        return own / max(1, rows)

    def confirm(self) -> None:
        self.outer.confirm()

    def meets(self, step: int) -> bool:
        return self.outer.meets(step)

    def named(self) -> dict[str, Array]:
        """The common parameters: within steps that an exception has ended copies, only to be read.

        What were written to them would be lost where the ranks exchange changes.
        """
        if self.outer.is_synchronized:
            return super().named()
        values = self.outer.common.astype(self.reducer.parameters.dtype)
        if isinstance(values, numpy.ndarray):
            values.flags.writeable = False
        return self.outer.layout.named(values)

    def common(self) -> tuple[Array, dict[str, Array]]:
        return self.outer.common, self.outer.layout.named(self.outer.common)

    def finish(self) -> None:
        """Bring all ranks to the same parameters."""
        self.outer.synchronize(self.update.optimizer.steps)

    def take_up(self) -> list[float]:
        self.outer.forget_failure()
        losses = super().take_up()
        if self.outer.is_synchronized:  # the program may have written to them
            self.outer.adopt()
        else:  # an exception may have left it out
            self.outer.after(self.update.optimizer.steps)
        return losses

    def is_whole(self) -> bool:
        return super().is_whole() and not self.outer.is_changing

    def replaced(self) -> None:
        super().replaced()
        self.outer.resume(self.update.optimizer.steps)

    def forget(self) -> None:
        super().forget()
        self.outer.drop()

    def reduce_losses(self) -> list[float]:
        """Means over the samples of all ranks."""
        self.confirm()
        sums = numpy.array(self._losses, "f8").reshape(-1, 2)
        self.comm.Allreduce(MPI.IN_PLACE, sums, algorithm="recursive_doubling")
        self._losses = []
        losses: list[float] = (sums[:, 0] / sums[:, 1]).tolist()
        self.fits.losses += losses
        return losses

    def count_correct(self) -> int | None:
        """Those of the common parameters."""
        with self.outer.shown():
            return super().count_correct()

    def predicted_bytes(self) -> int:
        options = self.options
        inner = self.reducer.layout
        itemsize = self.reducer.parameters.itemsize
        layout = outer_layout(inner.tensors, options)
        changes = bytes_on_the_wire(layout, self.size, max(4, itemsize), options.compression)
        sent = 2 * (self.size - 1) * changes // self.size // options.inner_steps
        members = len(self._members)
        return sent + 2 * (members - 1) * inner.size * itemsize // members

    def report(self) -> dict[str, Any]:
        survived = {"recoveries": self.fits.recoveries} if self.options.elastic else {}
        return self.outer.report() | survived

    def describe(self) -> str:
        options = self.options
        parts = many(options.fragments, "fragment")
        return (
            f"diloco ({self._described('allreduce')}; {many(self._replicas, 'replica')}, {parts}, "
            f"each every {many(options.inner_steps, 'step')}, overlap {options.overlap})"
        )

    # Checkpoints.

    def vectors(self) -> Vectors:
        """The common state, and of each replica its parameters and the state of its optimizer.

        These are rank by rank; so the first of them are what another strategy takes for its own.
        """
        elements = self.outer.layout.elements
        common = self.outer.vectors(self.rank, self.size)
        state: Vectors = {name: (elements, pieces) for name, pieces in common.items()}
        group = self.reducer.comm
        own = self.update.vectors()
        own[REPLICAS] = own.pop(PARAMETERS)
        if self.outer.is_under_way():
            own[CHANGES] = self.outer.changes_under_way(group.Get_rank(), group.Get_size())
        start = self._replica * elements
        for name, pieces in own.items():
            shifted = [(start + plain, part) for plain, part in pieces]
            state[name] = (self._replicas * elements, shifted)
        return state

    def restore(self, checkpoint: Readable, steps: int) -> None:
        """Replicas beyond those of a checkpoint begin as copies of these."""
        replica = _Replica(checkpoint, self._replica, self.outer.layout.elements)
        self.update.restore(replica, steps)
        self.outer.restore(checkpoint, replica, steps)

    # When ranks have died.

    def former(self) -> Former:
        """What this rank has for a strategy of fewer ranks.

        It stays the same: that strategy takes the optimizer, and others may die meanwhile.
        """
        if self._former is None:
            self._former = self._read_former()
        return self._former

    def _read_former(self) -> Former:
        update = self.update
        state = {PARAMETERS: update.values, **update.optimizer.state}
        plain = self.reducer.layout.in_plain_order
        own = Window({name: plain(array) for name, array in state.items()}, 0)
        return Former(update.optimizer.steps, own, self.outer, self.fits, self._losses)

    def take_over(self, former: Former) -> list[float]:
        """Go on with this rank's replica after the last step that all have made. Collective.

        A rank that was ahead makes its steps since then once more. Returns the losses of all
        steps: of those that not all knew, of the samples of the ranks that live.
        """
        steps = min(self.comm.allgather(former.steps))
        self.update.restore(former.own, steps)
        self.reducer.replaced()
        group = self.reducer.comm
        for array in (self.update.values, *self.update.optimizer.state.values()):
            group.Bcast(array, root=0)
        self.reducer.parameters[...] = self.update.values
        self.outer.take_over(former.outer, group)
        losses = self._known(former)
        self.outer.resume(steps)
        return losses

    def _known(self, former: Former) -> list[float]:
        known = former.fits.losses
        lengths = self.comm.allgather(len(known))
        longest: list[float] = self.comm.bcast(known, root=lengths.index(max(lengths)))
        left = former.losses[len(longest) - len(known) :]
        self._losses = left[: min(self.comm.allgather(len(left)))]
        self.fits.losses = longest
        self.reduce_losses()
        return list(self.fits.losses)


class Former(NamedTuple):
    """What a rank has of local steps when others have died."""

    #: inner steps
    steps: int
    #: this rank's parameters and the state of its optimizer
    own: Window
    outer: OuterSteps
    fits: FitRecord
    #: of the steps whose losses are not known to all
    losses: list[list[float]]


class _Replica:
    """What a checkpoint has of one replica, read as that of a training without others."""

    def __init__(self, checkpoint: Readable, number: int, elements: int) -> None:
        self._checkpoint = checkpoint
        self._number = number
        self._elements = elements

    @property
    def totals(self) -> Mapping[str, int]:
        return self._checkpoint.totals

    def read(self, name: str, start: int, stop: int) -> Array:
        if name == PARAMETERS and REPLICAS in self.totals:
            name = REPLICAS
        replicas = max(1, self.totals[name] // max(1, self._elements))
        first = self._number % replicas * self._elements
        return self._checkpoint.read(name, first + start, first + stop)
