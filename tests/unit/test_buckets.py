"""Buckets: every element has one place, one owner and one name, whatever the shapes, order, limit and number of ranks."""

import random

import numpy
import pytest

from mpicoll import ArgumentError
from mpicoll.train.model import Tensor
from mpicoll.train.parallel.buckets import Bucket, BucketLayout, exempt, groups


def drawn(seed):
    """A layout of random tensors in a random order."""
    draw = random.Random(seed)
    shapes = [tuple(draw.randrange(1, 6) for _ in range(draw.randrange(0, 4))) for _ in range(draw.randrange(1, 9))]
    tensors = [Tensor(f"t{number}", shape, number // 2) for number, shape in enumerate(shapes)]
    order = draw.sample(range(len(tensors)), len(tensors))
    return BucketLayout(tensors, order, draw.randrange(1, 6), draw.choice([1, 7, 30, 10**9])), order


CASES = pytest.mark.parametrize("layout, order", [drawn(seed) for seed in range(40)])


@CASES
def test_every_element_lies_in_one_place(layout, order):
    used = numpy.zeros(layout.size, int)
    for number, tensor in enumerate(layout.tensors):
        view = layout.view(used, number)
        assert view.shape == tensor.shape and numpy.shares_memory(view, used)
        view += 1
    assert used.max() == 1 and used.sum() == layout.plain[-1] == sum(tensor.size for tensor in layout.tensors)


@CASES
def test_buckets_are_in_order_and_no_larger_than_they_must_be(layout, order):
    assert [number for bucket in layout.buckets for number in bucket.tensors] == order
    assert [bucket.number for bucket in layout.buckets] == list(range(len(layout.buckets)))
    assert [bucket.start for bucket in layout.buckets] == [0] + [bucket.stop for bucket in layout.buckets[:-1]]
    for bucket in layout.buckets:
        held = sum(layout.tensors[number].size for number in bucket.tensors)
        assert held <= bucket.size < held + layout.shards and bucket.size % layout.shards == 0
        assert all(layout.bucket_of[number] == bucket.number for number in bucket.tensors)
        places = [layout.places[number] for number in bucket.tensors]
        assert places[0] == bucket.start and places == sorted(places)


@pytest.mark.parametrize("limit", [1, 4, 10, 20, 1000])
def test_a_bucket_takes_what_fits_and_more_only_until_it_is_half_full(limit):
    layout = BucketLayout([Tensor(str(size), (size,), 0) for size in (3, 9, 1, 1, 20, 4, 4)], range(7), 2, limit)
    for bucket, following in zip(layout.buckets, layout.buckets[1:]):
        *before, last = (layout.tensors[number].size for number in bucket.tensors)
        held = sum(before) + last
        assert held <= limit or 2 * sum(before) < limit
        assert 2 * held >= limit and held + layout.tensors[following.tensors[0]].size > limit  # the next had no room


@CASES
def test_shards_are_equal_and_cover_the_bucket(layout, order):
    for bucket in layout.buckets:
        shards = [bucket.shard(rank, layout.shards) for rank in range(layout.shards)]
        assert len({shard.stop - shard.start for shard in shards}) == 1
        covered = [element for shard in shards for element in range(shard.start, shard.stop)]
        assert covered == list(range(bucket.start, bucket.stop))


@CASES
def test_runs_give_the_plain_order_back(layout, order):
    flat, plain = numpy.full(layout.size, -1), numpy.arange(layout.plain[-1])
    for number, first in enumerate(layout.plain[:-1]):
        tensor = layout.tensors[number]
        layout.view(flat, number)[...] = plain[first : first + tensor.size].reshape(tensor.shape)
    found = numpy.full_like(plain, -1)
    middle = layout.size // 3
    for part in (slice(0, middle), slice(middle, layout.size)):
        for first, place, size in layout.runs(part):
            assert part.start <= place and place + size <= part.stop and size > 0
            assert (found[first : first + size] == -1).all()
            found[first : first + size] = flat[place : place + size]
    assert (found == plain).all()
    assert list(layout.runs(slice(middle, middle))) == []


@CASES
def test_each_element_knows_its_tensor(layout, order):
    names = numpy.array(["padding"] * layout.size, dtype=object)
    for number, tensor in enumerate(layout.tensors):
        layout.view(names, number)[...] = tensor.name
    assert [layout.name_at(element) for element in range(layout.size)] == names.tolist()


def test_groups_keep_order_and_limit():
    draw = random.Random(1)
    for _ in range(50):
        ends = [0]
        for _ in range(draw.randrange(1, 12)):
            ends.append(ends[-1] + draw.randrange(1, 9))
        buckets = [Bucket(number, *ends[number : number + 2], ()) for number in range(len(ends) - 1)]
        limit = draw.randrange(1, 30)
        grouped = groups(buckets, limit)
        assert [bucket for group in grouped for bucket in group] == buckets
        assert all(len(group) == 1 or sum(bucket.size for bucket in group) <= limit for group in grouped)
        for group, following in zip(grouped, grouped[1:]):
            assert sum(bucket.size for bucket in group) + following[0].size > limit
    assert groups([], 5) == []


@pytest.mark.parametrize("seed", range(20))
def test_what_is_never_compressed_lies_apart(seed):
    draw = random.Random(seed)
    shapes = [tuple(draw.randrange(1, 6) for _ in range(draw.randrange(0, 4))) for _ in range(draw.randrange(1, 9))]
    tensors = [Tensor(f"t{number}", shape, number) for number, shape in enumerate(shapes)]
    order = draw.sample(range(len(tensors)), len(tensors))
    exact = exempt(tensors)
    layout = BucketLayout(tensors, order, 3, draw.choice([1, 7, 30, 10**9]), exact)
    assert exact == {number for number, shape in enumerate(shapes) if len(shape) < 2}
    for bucket in layout.buckets:
        assert all((number in exact) == bucket.is_exact for number in bucket.tensors)
        assert [order.index(number) for number in bucket.tensors] == sorted(order.index(number) for number in bucket.tensors)
    assert sorted(number for bucket in layout.buckets for number in bucket.tensors) == sorted(order)
    assert [bucket.start for bucket in layout.buckets] == [0] + [bucket.stop for bucket in layout.buckets[:-1]]
    closed = [max(order.index(number) for number in bucket.tensors) for bucket in layout.buckets]
    assert closed == sorted(closed)  # none waits for one that is complete later


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 1, 2]])
def test_an_order_that_does_not_have_each_tensor_once_is_refused(order):
    with pytest.raises(ArgumentError, match=r"order: expected each of range\(0, 2\) once"):
        BucketLayout([Tensor("w", (2,), 0), Tensor("v", (3,), 0)], order, 2, 4)
