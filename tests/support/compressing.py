"""A training whose gradients are sent in codes, in one process and in plain NumPy."""

import numpy

from tests.support.exact import in_canonical_order

#: elements with one scale, and the largest integer
GROUPS = {"int8": (256, 127), "int4": (64, 7)}


def quantised(values, kind):
    """What is decoded of the codes of a float32 vector: groups begin with it."""
    if kind == "float16":
        return values.astype(numpy.float16).astype(numpy.float32)
    group, largest = GROUPS[kind]
    padded = numpy.zeros(-(-len(values) // group) * group, numpy.float32)
    padded[: len(values)] = values
    rows = padded.reshape(-1, group)
    scales = numpy.abs(rows).max(axis=1, keepdims=True) / numpy.float32(largest)
    scales = numpy.maximum(scales, numpy.finfo(numpy.float32).tiny)
    return (numpy.rint(rows / scales) * scales).reshape(-1)[: len(values)]


class CompressedSum:
    """The sums of one bucket over the ranks of a training, step by step.

    count: elements of the bucket, padding included, a multiple of the ranks. kind: of codes. is_fed_back: whether what codes
    lose is added to the next step. is_gathered: whether sums are sent in codes, too, as in an allreduce.
    """

    def __init__(self, ranks, count, kind, is_fed_back, is_gathered):
        self.kind, self.is_fed_back, self.is_gathered = kind, is_fed_back, is_gathered
        self.lost = numpy.zeros((ranks, count), numpy.float32)
        shards = [count // ranks * rank for rank in range(ranks + 1)]
        if is_gathered:  # one call, which cuts between groups
            group = GROUPS.get(kind, (1,))[0]
            groups = -(-count // group)
            small, larger = divmod(groups, ranks)
            sizes = [small + (rank < larger) for rank in range(ranks)]
            shards = [min(sum(sizes[:rank]) * group, count) for rank in range(ranks + 1)]
        self.shards = [slice(*pair) for pair in zip(shards, shards[1:])]

    def __call__(self, gradients, scale=1.0, is_made=True):
        """The sums of some vectors, one of each rank. is_made: whether the step is not skipped."""
        dtype = gradients[0].dtype
        wanted = [vector.astype(numpy.float32) for vector in gradients]
        if self.is_fed_back:
            wanted = [lost * numpy.float32(scale) + vector for lost, vector in zip(self.lost, wanted)]
        sent = [vector.astype(dtype).astype(numpy.float32) for vector in wanted]
        lost = [vector - other for vector, other in zip(wanted, sent)]
        sums = numpy.zeros(len(wanted[0]), dtype)
        for owner, shard in enumerate(self.shards):
            parts = []
            for rank, vector in enumerate(sent):
                decoded = vector[shard] if rank == owner else quantised(vector[shard], self.kind)
                lost[rank][shard] = wanted[rank][shard] - decoded
                parts.append(decoded)
            exact = in_canonical_order(parts)
            sums[shard] = exact
            if self.is_gathered:
                sums[shard] = decoded = quantised(exact, self.kind)
                lost[owner][shard] += exact - decoded
        if self.is_fed_back and is_made:
            self.lost = numpy.array(lost) / numpy.float32(scale)
        return sums
