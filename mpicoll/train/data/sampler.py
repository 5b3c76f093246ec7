"""The sampler: which samples of a data set each rank takes in each step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy
from numpy.typing import NDArray

from ...schedule import bounds
from ...support.checks import check, check_integer


class Sampler:
    """Which samples each rank takes in each step: each once per epoch, for any number of ranks.

    The global batches depend on (samples, batch_size, seed, epoch) alone, so training does not
    depend on the number of ranks, and can go on with another number. The last batch of an epoch
    holds the rest; where that is fewer samples than ranks, some ranks get none. ``len(sampler)`` is
    the number of steps per epoch.

    Parameters
    ----------
    samples : int
        Of the data set.
    batch_size : int
        Samples of one step on all ranks together.
    seed : int
        Of the order of the samples.
    rank, size : int
        This rank and the number of ranks.
    micro_batches : int, optional
        Into how many parts each batch is cut, whatever the number of ranks; a rank's share are some
        of them.

    Raises
    ------
    ArgumentError
        Where samples or batch_size are fewer than ranks.

    Examples
    --------
    >>> [len(batch) for batch in Sampler(10, 4).batches(epoch=0)]
    [4, 4, 2]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        micro_batches: int | None = None,
    ) -> None:
        check_integer("samples", samples, 1)
        check_integer("batch_size", batch_size, 1)
        check_integer("seed", seed, 0)
        enough = f"at least one sample per rank, {size} for {size} ranks"
        check(
            "samples",
            samples,
            samples >= size,
            f"{enough} (start fewer ranks, or train on more data)",
        )
        check(
            "batch_size",
            batch_size,
            batch_size >= size,
            f"{enough} (start fewer ranks, or take larger batches)",
        )
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.size = size
        self.micro_batches = micro_batches

    def __len__(self) -> int:
        """Steps per epoch."""
        return -(-self.samples // self.batch_size)

    @property
    def sizes(self) -> list[int]:
        """Samples in each step of an epoch."""
        return [
            min(self.batch_size, self.samples - start)
            for start in range(0, self.samples, self.batch_size)
        ]

    @property
    def most(self) -> int:
        """The most samples that a rank takes in a step."""
        return -(-self.batch_size // self.size)

    def batches(self, epoch: int) -> Iterator[NDArray[numpy.int64]]:
        """The global batches of an epoch.

        Parameters
        ----------
        epoch : int
            Counted from 0; each has an order of its own.

        Yields
        ------
        ndarray of int64, shape (samples of the step,)
            Numbers of samples.
        """
        order = numpy.random.default_rng([self.seed, epoch]).permutation(self.samples)
        for start in range(0, self.samples, self.batch_size):
            yield order[start : start + self.batch_size]

    def epochs(self, steps: int, start: int = 0) -> Iterator[list[NDArray[numpy.int64]]]:
        """Lists of batches, one list per epoch, for steps `start` to `steps`.

        The first list leaves out what the epoch it falls into has done, the last one is possibly
        cut short. None is empty: after a whole number of epochs the first list is that of the next
        epoch.
        """
        check_integer("start", start, 0)
        length = len(self)
        for epoch in range(start // length, -(-steps // length) if start < steps else 0):
            done = max(0, start - epoch * length)
            yield list(islice(self.batches(epoch), done, steps - epoch * length))

    def total(self, steps: int) -> int:
        """Samples in the first `steps` steps."""
        whole, rest = divmod(steps, len(self))
        return whole * self.samples + min(rest * self.batch_size, self.samples)

    def counts(self, batch: NDArray[numpy.int64]) -> list[int]:
        """How many samples of the batch each rank takes."""
        return [last - first for first, last in pairwise(self._edges(len(batch)))]

    def share(self, batch: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """This rank's part of the batch; the parts in rank order are the batch."""
        first, last = self._edges(len(batch))[self.rank : self.rank + 2]
        return batch[first:last]

    def _edges(self, count: int) -> list[int]:
        """Where the ranks' shares of a batch begin."""
        if self.micro_batches is None:
            return bounds(count, self.size)
        cuts = bounds(count, self.micro_batches)
        return [cuts[first] for first in bounds(self.micro_batches, self.size)]

    def micro(self, batch: NDArray[numpy.int64], parts: int) -> list[NDArray[numpy.int64]]:
        """This rank's shares of `parts` micro-batches, for gradient accumulation: some maybe empty.

        In order they are `share(batch)`, whatever `parts` is; in each micro-batch the ranks' counts
        differ by at most 1. Where `micro_batches` are the same for any number of ranks, they are
        those of this rank.
        """
        check_integer("parts", parts, 1)
        if self.micro_batches is not None:
            first, last = bounds(self.micro_batches, self.size)[self.rank : self.rank + 2]
            return [
                batch[low:high]
                for low, high in pairwise(bounds(len(batch), self.micro_batches)[first : last + 1])
            ]
        share = self.share(batch)
        return [share[first:last] for first, last in pairwise(bounds(len(share), parts))]
