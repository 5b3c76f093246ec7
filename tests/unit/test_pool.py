"""Scratch memory that a communicator keeps: used again, and never more of it than is of use."""

import random

from mpicoll.execute import pool as pools

MEBI = 1 << 20


def kept(pool):
    """Bytes that lie idle, counted one by one."""
    return sum(scratch.nbytes for scratch in pool.idle())


def test_scratch_is_used_again():
    pool = pools.ScratchPool()
    first = pool.acquire(3 * MEBI)
    pool.release(first)
    assert pool.acquire(3 * MEBI - 5) is first
    assert pool.acquire(3 * MEBI) is not first


def test_a_burst_is_forgotten():
    """Many gigabytes at a time, once: what is kept afterwards shrinks to what later calls need."""
    pool = pools.ScratchPool()
    burst = [pool.acquire(64 * MEBI) for _ in range(40)]  # never touched: no more than addresses
    for scratch in burst:
        pool.release(scratch)
    assert kept(pool) <= 40 * 64 * MEBI
    for _ in range(2 * pools.RECENT + 1):
        pool.release(pool.acquire(MEBI))
    assert kept(pool) <= pools.IDLE_BYTES
    assert pool.acquire(MEBI).nbytes == MEBI


def test_calls_of_many_sizes_do_not_pile_up():
    """One after the other, each of another size: what lies idle is at most what was in use at a time."""
    pool = pools.ScratchPool()
    for nbytes in range(80 * MEBI, 400 * MEBI, 10 * MEBI):
        pool.release(pool.acquire(nbytes))
        assert kept(pool) <= 1.25 * nbytes  # sizes are rounded up


def test_the_bound_holds_whatever_happens():
    random.seed(7)
    pool, used, peaks = pools.ScratchPool(), [], []
    for _ in range(5000):
        if used and random.random() < 0.5:
            pool.release(used.pop(random.randrange(len(used))))
        else:
            used.append(pool.acquire(int(2 ** random.uniform(0, 28))))
            peaks.append(sum(scratch.nbytes for scratch in used))
        assert kept(pool) <= max([pools.IDLE_BYTES, *peaks[-2 * pools.RECENT - 1 :]])


def test_small_scratch_stays():
    """What fits into the limit is kept, however many sizes alternate."""
    pool = pools.ScratchPool()
    sizes = [MEBI, 2 * MEBI, 5 * MEBI, 10 * MEBI]
    first = [pool.acquire(size) for size in sizes]
    for scratch in first:
        pool.release(scratch)
    for _ in range(3 * pools.RECENT):
        for size, scratch in zip(sizes, first):
            again = pool.acquire(size)
            assert again is scratch
            pool.release(again)


def test_clear_lets_all_go():
    pool = pools.ScratchPool()
    pool.release(pool.acquire(MEBI))
    pool.clear()
    assert not kept(pool)
