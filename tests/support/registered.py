"""The registered algorithms, for tests that run for each of them."""

from mpicoll import algorithms
from mpicoll.collectives import COLLECTIVES

EVERY = [algorithm for name in COLLECTIVES for algorithm in algorithms.registered(name)]


def named(algorithm):
    """Its name in the list of tests."""
    return f"{algorithm.collective}-{algorithm.name}"
