"""The norm of the gradients of all ranks."""

from __future__ import annotations

import math

import numpy
from mpi4py import MPI

from ...schedule import bounds
from ..optim import square_of_words, squared_norm, whole_squares
from .reducer import Reducer


def squared_norm_of(reducer: Reducer) -> float:
    """The sum of the squares of all gradients, the same bits on all ranks. Collective.

    Each rank computes its part, also where all have all gradients: the bits of a sum depend on the
    machine, and on the threads of its BLAS. Reproducible trainings sum in fixed point.
    """
    if reducer.comm.reproducible:
        return _reproducible(reducer)
    squares = []
    for bucket in reducer.layout.buckets:  # as they come
        gradients = reducer.reduced(bucket)
        if not reducer.divided:
            low, high = bounds(bucket.size, reducer.size)[reducer.rank : reducer.rank + 2]
            gradients = gradients[low:high]
        with reducer.meter.computing("norm"):
            squares.append(squared_norm(gradients))
    with reducer.meter.computing("norm"):
        total = numpy.array([float(sum(squares))])  # waits for the device, once
    if reducer.size > 1:
        with reducer.meter.waiting("norm"), numpy.errstate(invalid="ignore"):
            reducer.comm.Allreduce(MPI.IN_PLACE, total, algorithm="recursive_doubling")
    return float(total[0])


def _reproducible(reducer: Reducer) -> float:
    """The same for any number of ranks. Costs an allreduce of 8 bytes and one of 16."""
    gradients = [reducer.reduced(bucket) for bucket in reducer.layout.buckets]
    with reducer.meter.computing("norm"), numpy.errstate(all="ignore"):
        largest = [float(abs(part).max()) for part in gradients if len(part)]
        finite = all(map(math.isfinite, largest))
        top = numpy.array([max(largest, default=0.0) if finite else math.inf])
    with reducer.meter.waiting("norm"):
        reducer.comm.Allreduce(MPI.IN_PLACE, top, op=MPI.MAX)
    if not 0 < top[0] < math.inf:
        return float(top[0])
    exponent = max(-900, math.frexp(top[0])[1])
    with reducer.meter.computing("norm"):
        squares = [whole_squares(part, exponent) for part in gradients]
        words = numpy.array(squares, "int64").sum(axis=0)
    if reducer.divided:
        with reducer.meter.waiting("norm"):
            reducer.comm.Allreduce(MPI.IN_PLACE, words)
    return square_of_words(words.tolist(), exponent)
