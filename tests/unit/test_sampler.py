"""What each rank takes in each step, and prefetching it. No MPI here."""

import itertools
import threading

import numpy
import pytest

from mpicoll.errors import ArgumentError
from mpicoll.train import Sampler
from mpicoll.train.data.prefetch import prefetched

# ---- sampler

SIZES = [1, 2, 3, 4, 7, 16]


LENGTHS = [(1, 1), (10, 3), (12, 4), (23, 50), (97, 8), (50, 16)]
CASES = [(*length, size) for length, size in itertools.product(LENGTHS, SIZES) if size <= min(length)]


@pytest.mark.parametrize("count, batch_size, size", CASES)
def test_each_sample_once_per_epoch_for_any_number_of_ranks(count, batch_size, size):
    ranks = [Sampler(count, batch_size, 5, rank, size) for rank in range(size)]
    alone = Sampler(count, batch_size, 5)
    for epoch in range(2):
        seen = []
        for batch, *others in zip(alone.batches(epoch), *(sampler.batches(epoch) for sampler in ranks), strict=True):
            assert all((other == batch).all() for other in others)
            parts = [sampler.share(batch) for sampler in ranks]
            assert [len(part) for part in parts] == ranks[0].counts(batch)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert (numpy.concatenate(parts) == batch).all()
            seen += batch.tolist()
        assert sorted(seen) == list(range(count))
        assert len(list(ranks[-1].batches(epoch))) == len(alone)


@pytest.mark.parametrize("count, batch_size, size", CASES)
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 40])
def test_micro_batches_are_the_batch(count, batch_size, size, parts):
    ranks = [Sampler(count, batch_size, 5, rank, size) for rank in range(size)]
    for batch in ranks[0].batches(0):
        micro = [sampler.micro(batch, parts) for sampler in ranks]
        assert {len(pieces) for pieces in micro} == {parts}
        for sampler, pieces in zip(ranks, micro):
            assert (numpy.concatenate(pieces) == sampler.share(batch)).all()
        assert (numpy.concatenate(sum(micro, [])) == batch).all()
        for pieces in zip(*micro):
            assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_order_changes_with_epoch_and_seed_and_nothing_else():
    def order(seed, epoch):
        return numpy.concatenate(list(Sampler(50, 7, seed).batches(epoch))).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def lists(epochs):
    return [[batch.tolist() for batch in batches] for batches in epochs]


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 9])
def test_steps_run_across_epochs(steps):
    sampler = Sampler(10, 3)  # four steps per epoch: 3, 3, 3, 1
    epochs = lists(sampler.epochs(steps))
    whole = [batch.tolist() for epoch in range(3) for batch in sampler.batches(epoch)]
    assert sum(epochs, []) == whole[:steps]
    assert [len(batches) for batches in epochs[:-1]] == [4] * (len(epochs) - 1)
    assert sampler.total(steps) == sum(map(len, whole[:steps]))


@pytest.mark.parametrize("steps", [7, 8, 9])
@pytest.mark.parametrize("size", [1, 3])
def test_resumed_at_any_step_is_the_uninterrupted_sequence(steps, size):
    whole = sum(lists(Sampler(10, 3, 2).epochs(steps)), [])
    sampler = Sampler(10, 3, 2, size - 1, size)
    for start in range(steps):
        epochs = lists(sampler.epochs(steps, start))
        assert sum(epochs, []) == whole[start:]
        assert all(epochs) and len(epochs[0]) == min(4 - start % 4, steps - start)
    assert lists(sampler.epochs(steps, steps)) == lists(sampler.epochs(steps, steps + 1)) == []


@pytest.mark.parametrize("arguments, name", [((0, 1), "samples"), ((5, 0), "batch_size"), ((5, 1, -1), "seed")])
def test_wrong_sampler(arguments, name):
    with pytest.raises(ArgumentError, match=f"^{name}: expected an integer"):
        Sampler(*arguments)


def test_fewer_samples_than_ranks():
    Sampler(4, 4, size=4)
    with pytest.raises(ArgumentError, match=r"^samples: expected at least one sample per rank, 4 for 4 ranks .*, got 3$"):
        Sampler(3, 4, size=4)
    with pytest.raises(ArgumentError, match=r"^batch_size: expected at least one .* larger batches\), got 3$"):
        Sampler(4, 3, size=4)


def test_wrong_steps_and_parts():
    sampler = Sampler(10, 3)
    with pytest.raises(ArgumentError, match="^parts: expected an integer of at least 1, got 0"):
        sampler.micro(numpy.arange(3), 0)
    with pytest.raises(ArgumentError, match="^start: expected an integer of at least 0, got -1"):
        list(sampler.epochs(5, -1))


# ---- prefetching


@pytest.mark.parametrize("depth", [1, 2, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_prefetched_values_come_in_order(depth, count):
    before, ran = threading.active_count(), set()

    def square(item):
        ran.add(threading.current_thread())
        return item * item

    assert list(prefetched(square, iter(range(count)), depth)) == [item * item for item in range(count)]
    assert len(ran) == min(count, 1) and threading.current_thread() not in ran
    assert threading.active_count() == before


@pytest.mark.parametrize("depth", [1, 3])
def test_prefetched_up_to_depth_ahead_and_no_further(depth):
    started = [threading.Event() for _ in range(8)]
    values = prefetched(lambda item: started[item].set() or item, range(8), depth)
    assert next(values) == 0
    assert all(event.wait(60) for event in started[1 : 1 + depth])  # while the caller is busy with value 0
    values.close()  # the thread has ended: nothing starts any more
    assert not any(event.is_set() for event in started[1 + depth:])


def test_exception_comes_in_the_place_of_its_item():
    before = threading.active_count()
    values = prefetched(lambda item: 6 // item, [3, 2, 0, 1])
    assert [next(values), next(values)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(values)
    assert list(values) == [] and threading.active_count() == before


def test_closing_early_waits_for_the_call_in_progress_and_drops_the_rest():
    before, entered, leave, done = threading.active_count(), threading.Event(), threading.Event(), []

    def function(item):
        if item == 1:
            entered.set()
            leave.wait(60)
        done.append(item)

    values = prefetched(function, range(9), depth=4)
    next(values)
    assert entered.wait(60)
    closing = threading.Thread(target=values.close)
    closing.start()
    leave.set()
    closing.join(60)
    assert not closing.is_alive() and threading.active_count() == before
    assert done[:2] == [0, 1] and len(done) <= 5


def test_a_loop_left_early_leaves_no_thread():
    before = threading.active_count()
    for value in prefetched(abs, range(100)):
        if value == 3:
            break
    del value
    assert threading.active_count() == before


def test_wrong_depth():
    with pytest.raises(ArgumentError, match="^depth: expected an integer of at least 1, got 0"):
        prefetched(abs, [1], 0)
