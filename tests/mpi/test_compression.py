"""Compressed calls: the bits of an independent computation, in each form; who is refused, and what errors say."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms
from mpicoll.buffers import KeptSums, compression_of
from mpicoll.errors import ArgumentError, BufferError, CollectiveMismatch, CollectiveTimeout
from mpicoll.execute.context import Context
from tests.support.cases import COUNTS, PRIME, RANK, ROOTS, SEGMENT, SIZE, WORLD

pytestmark = [pytest.mark.mpi, pytest.mark.interpreters("python", "c")]
NAMES = ("int8", "int4", "bfloat16", "float16")
#: several groups on each rank
MANY = 256 * 3 * SIZE + 77


def normal(rank, count):
    return np.random.default_rng([rank, count]).standard_normal(count).astype("f4")


def quantised(name, x):
    """The elements as they come out of codes: computed otherwise than mpicoll does. Integers have no signed zero."""
    if name == "float16":
        return x.astype("f2").astype("f4")
    if name == "bfloat16":
        return np.array([nearest_bfloat16(value) for value in x], "f4")
    group, most = (256, 127) if name == "int8" else (64, 7)
    result = np.empty_like(x)
    for start in range(0, len(x), group):
        part = x[start : start + group]
        scale = np.float32(np.abs(part).max()) / np.float32(most)
        result[start : start + group] = np.round(part / scale) * scale + np.float32(0) if scale else 0
    return result


def nearest_bfloat16(value):
    low = np.array(np.float32(value).view("u4") & 0xFFFF0000, "u4").view("f4")
    high = np.array((np.float32(value).view("u4") & 0xFFFF0000) + 0x10000, "u4").view("f4")
    if abs(value - low) == abs(high - value):
        return low if not low.view("u4") >> 16 & 1 else high
    return low if abs(value - low) < abs(high - value) else high


def edges_of(count, name):
    """The vector cut between groups, as evenly as that goes."""
    group = {"int8": 256, "int4": 64}.get(name, 1)
    share, extra = divmod(-(-count // group), SIZE)
    return [min(count, group * (rank * share + min(rank, extra))) for rank in range(SIZE + 1)]


def folded(parts):
    """The sum in the canonical order: leading pairs, then a tree."""
    pairs = len(parts) - (1 << len(parts).bit_length() - 1) or len(parts) // 2
    while len(parts) > 1:
        parts = [parts[at] + parts[at + 1] for at in range(0, 2 * pairs, 2)] + parts[2 * pairs :]
        pairs = len(parts) // 2
    return parts[0]


def sum_of(name, contributions, edges):
    """The sums of the blocks on their owners: the owner's contribution is exact."""
    blocks = []
    for owner, (low, high) in enumerate(zip(edges, edges[1:])):
        blocks.append(folded([
            part[low:high] if rank == owner else quantised(name, part[low:high])
            for rank, part in enumerate(contributions)
        ]))  # fmt: skip
    return blocks


def allreduced(name, contributions):
    if SIZE == 1:
        return contributions[0]
    blocks = sum_of(name, contributions, edges_of(len(contributions[0]), name))
    return np.concatenate([quantised(name, block) for block in blocks])


def same(x, y):
    return x.tobytes() == y.tobytes()


@pytest.mark.parametrize("segment_bytes", [None, SEGMENT])
@pytest.mark.parametrize("name", NAMES)
def test_allreduce_has_the_bits_of_an_independent_computation(comm, name, segment_bytes):
    named = {"compression": name, "algorithm": "pairwise", "segment_bytes": segment_bytes}
    for count in (*COUNTS, MANY):
        contributions = [normal(rank, count) for rank in range(SIZE)]
        wanted = allreduced(name, contributions)
        x, y = contributions[RANK].copy(), np.empty(count, "f4")
        comm.Allreduce(x, y, **named)
        assert same(y, wanted) and same(x, contributions[RANK])
        comm.Allreduce(MPI.IN_PLACE, x, **named)
        assert same(x, wanted)
        y[:] = 0
        comm.Iallreduce(contributions[RANK].copy(), y, **named).Wait()
        assert same(y, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_persistent_plan_whose_data_change_scale(comm, name):
    x, y = np.empty(MANY, "f4"), np.empty(MANY, "f4")
    plan = comm.Allreduce_init(x, y, compression=name, algorithm="pairwise")
    for factor in (1.0, 1e-6, 1e4):
        contributions = [normal(rank, MANY) * np.float32(factor) for rank in range(SIZE)]
        x[:] = contributions[RANK]
        plan.Start()
        plan.Wait()
        assert same(y, allreduced(name, contributions))
    plan.Free()


@pytest.mark.parametrize("word", [each.name for each in algorithms.proposed("reduce_scatter") if each.compressible])
@pytest.mark.parametrize("name", NAMES)
def test_reduce_scatter(comm, name, word):
    counts = [300 + 256 * rank for rank in range(SIZE)]
    edges = [sum(counts[:rank]) for rank in range(SIZE + 1)]
    contributions = [normal(rank, edges[-1]) for rank in range(SIZE)]
    y = np.empty(counts[RANK], "f4")
    comm.Reduce_scatter(contributions[RANK].copy(), y, counts, compression=name, algorithm=word)
    is_exact = word == "hierarchical"  # all ranks are on one node
    wanted = folded([part[edges[RANK] : edges[RANK + 1]] for part in contributions])
    if is_exact:
        assert np.allclose(y, wanted, rtol=1e-5, atol=1e-5)
    else:
        assert same(y, sum_of(name, contributions, edges)[RANK])


@pytest.mark.parametrize("word", [each.name for each in algorithms.proposed("allgather") if each.compressible])
@pytest.mark.parametrize("name", NAMES)
def test_allgather(comm, name, word):
    for count in (0, 1, PRIME):
        blocks = [normal(rank, count) for rank in range(SIZE)]
        y = np.empty((SIZE, count), "f4")
        comm.Allgather(blocks[RANK].copy(), y, compression=name, algorithm=word)
        is_exact = word == "hierarchical" or SIZE == 1
        wanted = [block if is_exact else quantised(name, block) for block in blocks]
        assert same(y, np.array(wanted, "f4"))  # the owner's own block, too


@pytest.mark.parametrize("word", [each.name for each in algorithms.proposed("bcast") if each.compressible])
@pytest.mark.parametrize("root", ROOTS)
def test_bcast(comm, word, root):
    for name in NAMES:
        x = normal(root if RANK == root else 99, 256 * 8 * SIZE)
        comm.Bcast(x, root, compression=name, algorithm=word)
        is_exact = word == "hierarchical" or SIZE == 1
        source = normal(root, 256 * 8 * SIZE)
        assert same(x, source if is_exact else quantised(name, source))  # the root's, too


@pytest.mark.parametrize("word", [each.name for each in algorithms.proposed("reduce") if each.compressible])
@pytest.mark.parametrize("root", ROOTS)
def test_reduce_is_within_its_bound(comm, word, root):
    for name, error in (("int8", 0.0070), ("int4", 0.107), ("bfloat16", 0.0017)):
        x = normal(RANK, MANY)
        y = np.empty(MANY, "f4") if RANK == root else None
        comm.Reduce(x, y, root=root, compression=name, algorithm=word)
        if RANK == root:
            exact = np.sum([normal(rank, MANY).astype("f8") for rank in range(SIZE)], axis=0)
            assert np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2)) < 1.1 * 2**0.5 * error


@pytest.mark.parametrize("word", [each.name for each in algorithms.proposed("allreduce") if each.compressible])
def test_all_ranks_have_the_same_bits(comm, word):
    for name in NAMES:
        y = np.empty(MANY, "f4")
        comm.Allreduce(normal(RANK, MANY), y, compression=name, algorithm=word)
        assert len(set(comm.allgather(y.tobytes()))) == 1


# Each call, in each form, with each placing of its arrays.

#: with an algorithm of each that sends codes
CALLS = {
    "Allreduce": "pairwise", "Reduce": "pairwise", "Reduce_scatter": "pairwise", "Reduce_scatter_block": "pairwise",
    "Allgather": "ring", "Allgatherv": "ring", "Bcast": "scatter_allgather",
}  # fmt: skip
ROOT = SIZE - 1
#: elements of the blocks of ranks: a group may not reach into the next block
BLOCK = 600
SIZES = [BLOCK if rank % 2 else BLOCK + 77 for rank in range(SIZE)]


def sizes_of(method):
    """Elements that each rank contributes, and of the result on each rank."""
    if method in ("Allgather", "Allgatherv"):
        sizes = SIZES if method.endswith("v") else [BLOCK] * SIZE
        return sizes, [sum(sizes)] * SIZE
    if method.startswith("Reduce_scatter"):
        sizes = [BLOCK] * SIZE if method.endswith("block") else SIZES
        return [sum(sizes)] * SIZE, sizes
    return [MANY] * SIZE, [MANY] * SIZE


def result_of(method, name):
    """What this rank gets, and where it begins in the vector of all blocks; None where it gets nothing."""
    given, got = sizes_of(method)
    contributions = [normal(rank, count) for rank, count in enumerate(given)]
    if SIZE == 1:
        return contributions[0]
    if method == "Bcast":
        return quantised(name, contributions[ROOT])
    if method.startswith("Allgather"):
        return np.concatenate([quantised(name, part) for part in contributions])
    if method == "Allreduce":
        return allreduced(name, contributions)
    if method == "Reduce":
        blocks = sum_of(name, contributions, edges_of(MANY, name))
        whole = [block if owner == ROOT else quantised(name, block) for owner, block in enumerate(blocks)]
        return np.concatenate(whole) if RANK == ROOT else None
    return sum_of(name, contributions, [sum(got[:rank]) for rank in range(SIZE + 1)])[RANK]


def array_of(values, place, module):
    """An array of these values: in a column of a table, or of its own."""
    if place == "strided":
        table = module.zeros((len(values), 3), "f4")
        column = table[:, 1]
        column[...] = module.asarray(values)
        return column
    return module.asarray(values.copy())


def buffers_of(method, place, module):
    """The arguments of a call on this rank, and the array in which its result is then, or None."""
    given, got = sizes_of(method)
    mine = normal(RANK, given[RANK])
    if method == "Bcast":
        x = array_of(mine if RANK == ROOT else np.zeros_like(mine), place, module)
        return [x, ROOT], x
    x = array_of(mine, place, module)
    receives = method != "Reduce" or RANK == ROOT
    y = array_of(np.zeros(got[RANK], "f4"), place, module) if receives else None
    more = {"Reduce": [MPI.SUM, ROOT], "Reduce_scatter": [SIZES]}.get(method, [])
    if place != "in place" or not receives:
        return [x, [y, SIZES] if method == "Allgatherv" else y, *more], y
    if method.startswith("Allgather"):
        start = sum(given[:RANK])
        y[start : start + given[RANK]] = x
        return [MPI.IN_PLACE, [y, SIZES] if method == "Allgatherv" else y], y
    return [MPI.IN_PLACE, x, *more], x[: got[RANK]]


def call(comm, form, method, arguments, **options):
    if form == "blocking":
        getattr(comm, method)(*arguments, **options)
    elif form == "nonblocking":
        getattr(comm, f"I{method.lower()}")(*arguments, **options).Wait()
    else:
        plan = getattr(comm, f"{method}_init")(*arguments, **options)
        plan.Start()
        plan.Wait()
        plan.Free()


@pytest.mark.parametrize("place", ["apart", "in place", "strided"])
@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
@pytest.mark.parametrize("method", CALLS)
def test_every_form_has_the_bits_of_an_independent_computation(comm, method, form, place):
    for name in ("int8", "int4", "float16"):
        arguments, result = buffers_of(method, place, np)
        call(comm, form, method, arguments, compression=name, algorithm=CALLS[method])
        wanted = result_of(method, name)
        assert result is None or same(np.ascontiguousarray(result), wanted)


@pytest.mark.parametrize("place", ["apart", "in place"])
@pytest.mark.parametrize("method", CALLS)
def test_arrays_on_a_device(comm, xp, method, place):
    for form, name in (("blocking", "int8"), ("nonblocking", "int4"), ("persistent", "float16")):
        arguments, result = buffers_of(method, place, xp)
        call(comm, form, method, arguments, compression=name, algorithm=CALLS[method])
        wanted = result_of(method, name)
        assert result is None or same(xp.asnumpy(result), wanted)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("method", ["Allreduce", "Reduce", "Reduce_scatter_block"])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_nodes_are_summed_exactly_and_their_sums_quantised(comm, method, name):
    """What the ranks of a node have nearly cancels: if each were quantised, errors would be far beyond the bound."""
    context = Context.of(comm)
    nodes = (0, 0, 1, 2, 1)[:SIZE]  # on a node that they share: their messages do not care
    context.topology = context.topology._replace(nodes=nodes)
    given, got = sizes_of(method)
    signs = {0: 1, 1: -1}
    contributions = [normal(rank, given[0]) + np.float32(signs.get(rank, 0)) * normal(99, given[0]) * np.float32(1e3)
                     for rank in range(SIZE)]  # fmt: skip
    arguments, result = buffers_of(method, "apart", np)
    arguments[0][:] = contributions[RANK]
    call(comm, "blocking", method, arguments, compression=name, algorithm="hierarchical")
    if result is None:
        return
    own = slice(RANK * got[RANK], (RANK + 1) * got[RANK]) if method == "Reduce_scatter_block" else slice(None)
    parts = [part[own] for part in contributions]
    error = np.abs(result - np.sum([part.astype("f8") for part in parts], axis=0))
    compression = compression_of(name)
    assert (error <= compression.bound(parts, 2, nodes)).all() and error.any()
    assert error.max() < 0.1 * compression.bound(parts, 2).max()


@pytest.mark.parametrize("dtype", ["f8", "f2", "bfloat16"])
def test_other_types_are_summed_in_float32(comm, dtype):
    dtype = getattr(pytest.importorskip("ml_dtypes"), dtype) if dtype == "bfloat16" else np.dtype(dtype)
    parts = [normal(rank, MANY).astype(dtype) for rank in range(SIZE)]
    wanted = parts[0]
    if SIZE > 1:
        wanted = allreduced("int8", [part.astype("f4") for part in parts])
    y = np.empty(MANY, dtype)
    comm.Allreduce(parts[RANK].copy(), y, compression="int8", algorithm="pairwise")
    assert same(y, wanted.astype(dtype))
    strided = np.zeros((MANY, 2), dtype)
    strided[:, 0] = parts[RANK]
    comm.Allreduce(MPI.IN_PLACE, strided[:, 0], compression="int8", algorithm="pairwise")
    assert same(strided[:, 0].copy(), y) and not strided[:, 1].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.mpi(min_size=2)
def test_what_is_not_finite_is_never_a_finite_number(comm, bad):
    x = normal(RANK, MANY)
    if RANK == SIZE - 1:
        x[700] = bad
    comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
    assert np.isnan(x[512:768]).all() and np.isfinite(x[:512]).all() and np.isfinite(x[768:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.mpi(min_size=2)
def test_what_the_owner_of_a_block_contributes_is_not_coded(comm, bad):
    x = np.ones(1024 * SIZE, "f4")
    if RANK == 0:
        x[[5, 1024 + 5]] = bad
    y = np.empty(1024, "f4")
    comm.Reduce_scatter_block(x, y, compression="int8", algorithm="pairwise")
    assert np.count_nonzero(~np.isfinite(y)) == {0: 1, 1: 256}.get(RANK, 0)


@pytest.mark.mpi(min_size=2)
def test_the_largest_float_stays_finite(comm):
    x = np.zeros(512, "f4")
    x[5] = np.finfo("f4").max if RANK == 0 else 0
    comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
    assert np.isfinite(x).all() and x[5] > 3.4e38


@pytest.mark.mpi(min_size=2)
def test_one_outlier_costs_its_own_group_alone(comm):
    x = normal(RANK, MANY)
    if RANK == 0:
        x[700] = 1e6
    exact = np.empty_like(x)
    comm.Allreduce(x, exact)
    y = np.empty_like(x)
    comm.Allreduce(x, y, compression="int8", algorithm="pairwise")
    error = np.abs(y - exact)
    assert error[512:768].max() <= 1e6 / 127 * 1.01 and np.delete(error, np.s_[512:768]).max() < 0.2


# Refusals, before anything is sent.


@pytest.mark.parametrize("form", ["Allreduce", "Iallreduce", "Allreduce_init"])
@pytest.mark.parametrize(("wrong", "said"), [
    ({"compression": "int7"}, "compression: expected None, 'float16', .* got 'int7' .did you mean int8"),
    ({"compression": 8}, "compression: expected None, .* got '8'"),
    ({"compression": "int8", "op": MPI.MAX}, "MAX of quantised elements has no bound; SUM has"),
    ({"compression": "int8", "algorithm": "ring"}, "compressed, ring quantises a value more than twice; these can"),
    ({"compression": "int8", "algorithm": "direct"}, "compressed, direct writes into memory of other ranks; these can"),
    ({"compression": "int8", "algorithm": "native"}, "algorithm='native' .* MPI's messages are not compressed"),
])  # fmt: skip
def test_refused(comm, form, wrong, said):
    x = np.ones(100_000, "f4")
    with pytest.raises(ArgumentError, match=said):
        getattr(comm, form)(MPI.IN_PLACE, x, **wrong)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == SIZE).all()


@pytest.mark.parametrize("dtype", ["i4", "c8"])
def test_types_that_cannot_be_compressed(comm, dtype):
    x = np.ones(100, dtype)
    with pytest.raises(ArgumentError, match="cannot be compressed; float32, float64, float16, bfloat16 can"):
        comm.Allreduce(MPI.IN_PLACE, x, compression="int8")
    with pytest.raises(ArgumentError, match="cannot be compressed"):
        comm.Bcast(x, compression="int8")


def test_a_derived_type_cannot_be_compressed(comm):
    datatype = MPI.FLOAT.Create_vector(10, 1, 2).Commit()
    with pytest.raises(ArgumentError, match="a derived datatype cannot be compressed"):
        comm.Bcast([np.ones(20, "f4"), 1, datatype], compression="int8")
    datatype.Free()


def test_the_root_of_a_bcast_must_be_writable(comm):
    x = np.ones(100, "f4")
    x.flags.writeable = False
    with pytest.raises(BufferError):
        comm.Bcast(x, compression="int8")


def test_a_reproducible_communicator_refuses_sums():
    comm = mpicoll.Communicator(WORLD.Dup(), reproducible=True)
    with pytest.raises(ArgumentError, match="the communicator is reproducible: its sums are made in fixed point"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(100, "f4"), compression="int8")
    comm.Free()


# By default.


def test_inside_a_node_nothing_is_compressed(comm):
    x = np.random.default_rng(RANK).integers(-99, 99, 100_000).astype("f4")
    exact = np.empty_like(x)
    WORLD.Allreduce(x, exact)
    for _ in range(3):
        y = np.empty_like(x)
        comm.Allreduce(x, y, compression="int4")
        assert same(y, exact)
    assert "not compressed: all ranks are on one node" in str(comm.explain("allreduce", x, compression="int4"))


def test_the_same_call_with_and_without_compression(comm):
    """Repeated, so that caches and doors are used."""
    x = normal(RANK, 64_000)
    exact, coded = np.empty_like(x), np.empty_like(x)
    comm.Allreduce(x, exact, algorithm="pairwise")
    comm.Allreduce(x, coded, algorithm="pairwise", compression="int8")
    assert SIZE == 1 or not same(exact, coded)
    y = np.empty_like(x)
    for _ in range(5):
        comm.Allreduce(x, y, algorithm="pairwise")
        assert same(y, exact)
        comm.Allreduce(x, y, algorithm="pairwise", compression="int8")
        assert same(y, coded)
        comm.Iallreduce(x, y, algorithm="pairwise", compression="int8").Wait()
        assert same(y, coded)
        comm.Iallreduce(x, y, algorithm="pairwise").Wait()
        assert same(y, exact)


# Other ranks.


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("others", [None, "int4"])
def test_a_compression_that_some_ranks_name(others):
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    with pytest.raises(CollectiveMismatch, match="compression='int8'"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(100_000, "f4"), compression="int8" if RANK == 0 else others)
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_a_timeout_names_the_compression():
    comm = mpicoll.Communicator(WORLD.Dup(), timeout=100)
    x = np.ones(100_000, "f4")
    comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
    mpicoll.Communicator(comm, timeout=1)  # from here on: a busy machine is slow to start all ranks
    if RANK:
        with pytest.raises(CollectiveTimeout, match="compression='int8'"):
            comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
    WORLD.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("segment_bytes", [None, SEGMENT])
@pytest.mark.parametrize("count", [0, 1, MANY])
@pytest.mark.parametrize("name", NAMES)
def test_sums_are_kept_as_they_were_before_they_were_coded(comm, name, count, segment_bytes, in_place):
    contributions = [normal(rank, count) for rank in range(SIZE)]
    edges = edges_of(count, name)
    kept = np.full(edges[RANK + 1] - edges[RANK], np.nan, "f4")
    result = contributions[RANK].copy()
    sent = MPI.IN_PLACE if in_place else contributions[RANK].copy()
    plan = comm.Allreduce_init(
        sent, KeptSums(result, kept), algorithm="pairwise", segment_bytes=segment_bytes, compression=name
    )
    plan.Start()
    plan.Wait()
    plan.Free()
    np.testing.assert_array_equal(result, allreduced(name, contributions))
    np.testing.assert_array_equal(kept, sum_of(name, contributions, edges)[RANK])


@pytest.mark.mpi(min_size=2)
def test_room_for_kept_sums_has_the_size_of_the_block(comm):
    result = np.ones(MANY, "f4")
    low, high = edges_of(MANY, "int8")[RANK : RANK + 2]
    with pytest.raises(BufferError, match=f"room for {high - low} elements, got {MANY}"):
        comm.Allreduce_init(MPI.IN_PLACE, KeptSums(result, result.copy()), algorithm="pairwise", compression="int8")
    with pytest.raises(ArgumentError, match="KeptSums"):
        comm.Allreduce_init(MPI.IN_PLACE, KeptSums(result, result.copy()), algorithm="pairwise")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ["parameter_server", "allgather_reduce", "hierarchical"])
def test_sums_are_kept_by_no_algorithm_in_which_some_ranks_code_none(comm, algorithm):
    result, kept = np.ones(MANY, "f4"), np.empty(MANY // SIZE, "f4")
    with pytest.raises(ArgumentError, match=f"by pairwise, where each rank codes .*, got {algorithm}"):
        comm.Allreduce(MPI.IN_PLACE, KeptSums(result, kept), algorithm=algorithm, compression="int8")
