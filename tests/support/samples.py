"""Small data sets, and all that is in one."""

import numpy


def samples(count=13, width=5, classes=4, seed=0):
    random = numpy.random.default_rng(seed)
    return random.standard_normal((count, width)), random.integers(0, classes, count)


def everything(data):
    """(features, labels) of all samples, the training samples first."""
    parts = data.take(numpy.arange(len(data))), data.take_test(slice(None))
    return tuple(numpy.concatenate(arrays) for arrays in zip(*parts))
