"""Numbers whose sum shows the order in which it was made, and that sum as whole numbers give it."""

import os
from fractions import Fraction
from math import frexp

import numpy

#: whether everything is tried; `each` says the same, but starts jobs, which a rank of a job may not
ALL = bool(os.environ.get("MPICOLL_TEST_ALL"))


def mixed(count, dtype, seed):
    """Numbers of mixed sign and magnitude."""
    random = numpy.random.default_rng(seed)
    spread = 3 if numpy.dtype(dtype).itemsize == 2 else 8
    values = random.standard_normal(count) * 10.0 ** random.integers(-spread, spread / 2, count)
    if numpy.dtype(dtype).kind == "c":
        values = values + 1j * random.standard_normal(count)
    return values.astype(dtype)


def contributions(number, count, dtype):
    """So many vectors, one after the other."""
    return numpy.stack([mixed(count, dtype, seed) for seed in range(number)])


def in_canonical_order(vectors):
    """Their sum: leading pairs until a power of two is left, then a binary tree."""
    vectors = list(vectors)
    pairs = len(vectors) - (1 << len(vectors).bit_length() - 1) or len(vectors) // 2
    while len(vectors) > 1:
        vectors = [vectors[at] + vectors[at + 1] for at in range(0, 2 * pairs, 2)] + vectors[2 * pairs :]
        pairs = len(vectors) // 2
    return vectors[0]


def in_fixed_point(vectors, top=None):
    """The sum of float32 or float16 vectors by the rule of the documentation, made of Python's whole numbers.

    top: the largest magnitude, where it is not among these.
    """
    if top is None:
        top = max(abs(value) for vector in vectors for value in map(float, vector))
    unit = Fraction(2) ** (frexp(top)[1] - 50)
    totals = [sum(round(Fraction(float(value)) / unit) for value in column) for column in zip(*vectors)]
    return numpy.array([rounded(total * unit, vectors.dtype.type) for total in totals])


def rounded(value, kind):
    """The nearest number of a type to a Fraction, to even."""
    near = kind(float(value))
    bits = numpy.dtype(kind).itemsize
    return min(
        (numpy.nextafter(near, kind(-numpy.inf)), near, numpy.nextafter(near, kind(numpy.inf))),
        key=lambda each: (abs(Fraction(float(each)) - value), each.view(f"u{bits}") & 1),
    )
