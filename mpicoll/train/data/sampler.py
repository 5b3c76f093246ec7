"""The sampler: which samples of a data set each rank takes in each step."""

from itertools import islice

import numpy

from ...support.checks import check, check_integer


def shares(count, parts):
    """`count` things dealt out to `parts` as evenly as possible, the larger shares first.

    >>> shares(10, 4)
    [3, 3, 2, 2]
    """
    quotient, remainder = divmod(count, parts)
    return [quotient + (part < remainder) for part in range(parts)]


class Sampler:
    """Which samples each rank takes in each step: every sample once per epoch, for any number of ranks.

    The global batches depend on (samples, batch_size, seed, epoch) alone, so training does not depend on the number
    of ranks, and can go on with another number. The last batch of an epoch holds the rest; where that is fewer samples
    than ranks, some ranks get none. Raises ArgumentError where samples or batch_size are fewer than ranks (`size`).
    """

    def __init__(self, samples, batch_size, seed=0, rank=0, size=1):
        check_integer("samples", samples, 1)
        check_integer("batch_size", batch_size, 1)
        check_integer("seed", seed, 0)
        enough = f"at least one sample per rank, {size} for {size} ranks"
        check("samples", samples, samples >= size, f"{enough} (start fewer ranks, or train on more data)")
        check("batch_size", batch_size, batch_size >= size, f"{enough} (start fewer ranks, or take larger batches)")
        self.samples, self.batch_size, self.seed, self.rank, self.size = samples, batch_size, seed, rank, size

    def __len__(self):
        """Steps per epoch."""
        return -(-self.samples // self.batch_size)

    @property
    def sizes(self):
        """Samples in each step of an epoch."""
        return [min(self.batch_size, self.samples - start) for start in range(0, self.samples, self.batch_size)]

    def batches(self, epoch):
        """The epoch's global batches: arrays of sample numbers, a new order in each epoch (counted from 0)."""
        order = numpy.random.default_rng([self.seed, epoch]).permutation(self.samples)
        for start in range(0, self.samples, self.batch_size):
            yield order[start : start + self.batch_size]

    def epochs(self, steps, start=0):
        """For `steps` steps in all, of which `start` are done: lists of batches, one list per epoch.

        The first list leaves out what the epoch it falls into has done, the last one is possibly cut short.
        None is empty: after a whole number of epochs the first list is that of the next epoch.
        """
        check_integer("start", start, 0)
        length = len(self)
        for epoch in range(start // length, -(-steps // length) if start < steps else 0):
            done = max(0, start - epoch * length)
            yield list(islice(self.batches(epoch), done, steps - epoch * length))

    def total(self, steps):
        """Samples in the first `steps` steps."""
        whole, rest = divmod(steps, len(self))
        return whole * self.samples + min(rest * self.batch_size, self.samples)

    def counts(self, batch):
        """How many samples of the batch each rank takes."""
        return shares(len(batch), self.size)

    def share(self, batch):
        """This rank's part of the batch; the parts in rank order are the batch."""
        counts = self.counts(batch)
        start = sum(counts[: self.rank])
        return batch[start : start + counts[self.rank]]

    def micro(self, batch, parts):
        """This rank's shares of `parts` micro-batches, for gradient accumulation: a list of arrays, some maybe empty.

        In order they are `share(batch)`, whatever `parts` is; in each micro-batch the ranks' counts differ by at most 1.
        """
        check_integer("parts", parts, 1)
        return numpy.array_split(self.share(batch), parts)
