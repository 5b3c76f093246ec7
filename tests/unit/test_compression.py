"""Codes of floats: their laws, hostile data, the same bits in C; and which schedules stay within two quantisations."""

import mmap

import numpy as np
import pytest

from mpicoll import algorithms, collectives, engine
from mpicoll.binding import Memory, Vector
from mpicoll.buffers import compression_of
from mpicoll.codes import NAMES
from mpicoll.engine.lowering import COMPRESSIONS, Code, Packed
from mpicoll.errors import ArgumentError, ScheduleError
from mpicoll.schedule import Coded, Copy, Input, Output, Recv, Scratch, Send, compressed, is_coded
from mpicoll.verify import check

EXTENSION = engine.status().extension
LENGTHS = (0, 1, 2, 63, 64, 65, 255, 256, 257, 1000, 40_000, 100_003)
MOST = {"int8": 127, "int4": 7}
COMPRESSED = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")
EVERY = [each for name in COMPRESSED for each in algorithms.registered(name)]


def coded(name, elements):
    compression = compression_of(name)
    codes = np.empty(compression.groups(len(elements)) * compression.nbytes, np.uint8)
    compression.encode(codes, elements)
    return codes


def decoded(name, codes, count):
    elements = np.empty(count, np.float32)
    compression_of(name).decode(elements, codes)
    return elements


def round_trip(name, elements):
    return decoded(name, coded(name, elements), len(elements))


def normal(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype("f4")


def hostile(count, seed=0):
    """All bits of finite floats, signed zeros, values below the normal ones, an outlier in each thousand."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 1 << 32, count, np.uint32).view("f4")
    values = np.where(np.isfinite(values) & (random.random(count) < 0.3), values, random.standard_normal(count))
    values = np.where(random.random(count) < 0.1, -0.0, values)
    values = np.where(random.random(count) < 0.1, values * 1e-40, values)
    return np.where(random.random(count) < 0.001, np.finfo("f4").max, values).astype("f4")


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_gaussian_data_is_the_stated_one(name):
    elements = normal(1 << 18)
    error = np.sqrt(np.mean((round_trip(name, elements) - elements) ** 2))
    assert error == pytest.approx(compression_of(name).error, rel=0.05)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("name", MOST)
@pytest.mark.parametrize("data", [normal, hostile])
def test_no_element_is_off_by_more_than_half_a_scale(name, data, count):
    elements = data(count)
    group = compression_of(name).group
    result = round_trip(name, elements).astype("f8")
    for start in range(0, count, group):
        part = elements[start : start + group].astype("f8")
        scale = max(np.abs(part).max() / MOST[name], np.finfo("f4").tiny)
        error = np.abs(result[start : start + group] - part).max()
        # rounding: of the scale, and of an integer times the scale
        assert error <= scale / 2 + 2 * np.finfo("f4").eps * np.abs(part).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", MOST)
def test_a_group_with_nan_or_an_infinity_is_nan(name, bad):
    group = compression_of(name).group
    elements = normal(3 * group + 5)
    elements[group + 1] = elements[-1] = bad
    wrong = np.isnan(round_trip(name, elements))
    assert wrong[group : 2 * group].all() and wrong[3 * group :].all()
    assert not wrong[:group].any() and not wrong[2 * group : 3 * group].any()


@pytest.mark.parametrize("name", MOST)
def test_the_largest_float32_stays_finite_and_within_half_a_scale(name):
    most = np.finfo("f4").max
    elements = np.array([-most, 1, most, np.nextafter(most, np.float32(0))], "f4")
    result = round_trip(name, elements)
    assert (np.abs(result.astype("f8") - elements) <= most / MOST[name] / 2).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_keep_nan_infinities_and_signs(name):
    elements = np.array([np.nan, -np.nan, np.inf, -np.inf, np.inf, -0.0, 1.0], "f4")
    result = round_trip(name, elements)
    assert np.isnan(result[:2]).all() and np.array_equal(result[2:], elements[2:])
    assert np.signbit(result[5])


@pytest.mark.parametrize("name, first", [("float16", 65520), ("bfloat16", 3.3961776e38)])
def test_a_half_beyond_its_range_is_an_infinity(name, first):
    elements = np.array([first, -first, np.nextafter(np.float32(first), np.float32(0))], "f4")
    assert np.array_equal(np.isinf(round_trip(name, elements)), [True, True, False])


@pytest.mark.parametrize("name", NAMES)
def test_codes_of_decoded_elements_decode_to_the_same_bits(name):
    once = round_trip(name, hostile(10_000))
    assert round_trip(name, once).tobytes() == once.tobytes()


def execute(code, name, source, target, count):
    """An instruction of the extension."""
    places = (0, source.ctypes.data), (0, target.ctypes.data)
    packed = Packed(code, kind=(COMPRESSIONS.index(name), 0), places=places, size=count)
    program = EXTENSION.program(bytes(packed), 0, 0, 0, b"", 0, -1, -1)
    EXTENSION.start(program, 0, ())
    assert EXTENSION.advance(program, 0.0) == (0, 1)


@pytest.mark.skipif(EXTENSION is None, reason=f"no compiled interpreter: {engine.status().reason}")
@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [normal, hostile])
def test_codes_have_the_same_bits_in_c(name, data, count):
    elements = data(count)
    codes = coded(name, elements)
    in_c = np.empty_like(codes)
    execute(Code.ENCODE, name, elements, in_c, count)
    assert in_c.tobytes() == codes.tobytes()
    result = np.empty(count, "f4")
    execute(Code.DECODE, name, codes, result, count)
    assert result.tobytes() == decoded(name, codes, count).tobytes()


@pytest.mark.skipif(EXTENSION is None, reason=f"no compiled interpreter: {engine.status().reason}")
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_is_so_in_c(name, bad):
    elements = normal(1000)
    elements[[3, 500, 999]] = bad
    codes = coded(name, elements)
    in_c = np.empty_like(codes)
    execute(Code.ENCODE, name, elements, in_c, 1000)
    assert np.array_equal(decoded(name, in_c, 1000), decoded(name, codes, 1000), equal_nan=True)


@pytest.mark.parametrize("wrong", ["int7", "INT8", "", None, 8])
def test_a_compression_that_there_is_not(wrong):
    with pytest.raises(ArgumentError, match="compression: expected None, 'float16', 'bfloat16', 'int8', 'int4', got"):
        compression_of(wrong)


# Schedules.


@pytest.mark.parametrize("algorithm", EVERY, ids=lambda each: f"{each.collective}-{each.name}")
def test_what_is_not_declared_compressible_is_not(algorithm):
    """What is declared is proved with all else that is: `check_cases`."""
    if algorithm.compressible:
        return
    with pytest.raises(ScheduleError, match="quantised|other bits|that is not compressed"):
        for size in range(2, 12):
            check(algorithm.collective, algorithm.generator, size, compressed=True)


def test_an_exact_value_beside_a_decoded_one_is_found():
    """An allgather in which the owner keeps its block as it was."""

    def wrong(rank, size):
        yield Copy(Input(rank), Coded("mine", rank))
        for step in range(1, size):
            yield Send(rank + step, Coded("mine", rank)), Recv(rank - step, Coded("theirs", rank - step))
            yield Copy(Coded("theirs", rank - step), Output(rank - step))
        yield Copy(Input(rank), Output(rank))

    with pytest.raises(ScheduleError, match="summed in another order than on other ranks: other bits"):
        check("allgather", wrong, 3)


def test_codes_do_not_meet_elements():
    def wrong(rank, size):
        yield Copy(Input(0), Coded("mine", 0))
        if rank == 0:
            yield Send(1, Coded("mine", 0)), Recv(1, Scratch("theirs", 0))
        else:
            yield Send(0, Coded("mine", 0)), Recv(0, Coded("theirs", 0))

    with pytest.raises(ScheduleError, match="rank 1 sends blocks .* but rank 0 expects"):
        check("allreduce", wrong, 2, blocks=1)


def test_codes_that_come_are_sent_on_as_they_are():
    bcast = collectives.BCAST
    pipeline = algorithms.find("bcast", "pipeline").generator
    [*rounds] = bcast.program(algorithms.in_codes(pipeline), 1, 4, 0, 2)
    operations = [operation for step in rounds for operation in step]
    assert all(is_coded(operation.part) for operation in operations if type(operation) in (Send, Recv))
    assert all(is_coded(operation.source) for operation in operations if type(operation) is Copy)


def test_what_stays_inside_a_node_is_exact():
    steps = [(Send(1, Input(0)), Recv(2, Scratch("a", 0))), (Send(1, Scratch("a", 0)),)]
    [first, _, last] = compressed(steps, 1, lambda peer: peer == 2)
    assert first == () and last == (Send(1, Scratch("a", 0)),)


def untouched(nbytes):
    """Bytes that need no memory before they are touched."""
    no_reserve = 0x4000  # of Linux: mmap has its name from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


def test_pieces_of_elements_and_of_their_codes_agree_beyond_2_to_the_31_elements():
    count = 3 << 30
    edges = [0, 1000, (1 << 31) + 77, count - 256 * 7, count]
    steps = [tuple(Copy(Input(block), Coded("mine", block)) for block in range(4))]
    vectors = {"input": Vector(untouched(4 * count).view("f4"))}
    compression = compression_of("int8")
    memory = Memory(steps, edges, vectors, np.dtype("f4"), untouched, codes=compression)
    end = 0
    for block in range(4):
        pairs = list(zip(memory.views(Input(block)), memory.views(Coded("mine", block)), strict=True))
        assert sum(elements.size for elements, _ in pairs) == edges[block + 1] - edges[block]
        for elements, codes in pairs:
            assert codes.size == compression.groups(elements.size) and codes.nbytes < 1 << 30
            assert codes.ctypes.data >= end
            end = codes.ctypes.data + codes.nbytes
