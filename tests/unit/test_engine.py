"""The compiled interpreter in one process: the bits of NumPy, what it refuses, and an installation without it."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from mpicoll import engine
from mpicoll.binding import Instruction, Program, Step
from mpicoll.buffers.ops import HALF
from mpicoll.engine import lowering
from mpicoll.engine.lowering import INSTRUCTION_BYTES, Code, Packed
from mpicoll.errors import ArgumentError
from mpicoll.schedule import Recv, Reduce, Send, Write
from mpicoll.support import settings
from mpicoll.support.arrays import element_type
from tests.support.launching import ROOT

EXTENSION = engine.status().extension
HALVES = [(dtype, op) for dtype in HALF for op in lowering._DEFINED[dtype]]
built = pytest.mark.skipif(EXTENSION is None, reason=f"no compiled interpreter: {engine.status().reason}")
UFUNCS = {"SUM": "add", "PROD": "multiply", "MAX": "maximum", "MIN": "minimum",
          "BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor",
          "LAND": "logical_and", "LOR": "logical_or", "LXOR": "logical_xor"}  # fmt: skip
SERVED = [
    (dtype, op) for dtype in lowering.TYPES for op in lowering._DEFINED.get(dtype, lowering.OPS)
    if dtype not in HALF
]  # fmt: skip


def hostile(dtype, seed):
    """Values of all bits: infinities, denormals, signed zeros; for floats no two nans meet, whose payloads no rule orders."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    values = random.integers(0, 256, 1003 * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        return (values & 1).view(dtype)
    parts = values.view(np.finfo(dtype).dtype if dtype.kind in "fc" else dtype)
    parts[random.random(parts.size) < 0.2] = 0
    if dtype.kind in "fc":
        parts[np.isnan(parts)] = [np.inf, -0.0][seed]
        parts[random.random(parts.size) < 0.1] = -0.0
        parts[:4] = [0.0, -0.0, np.inf, np.finfo(dtype).tiny / 3]
        parts[4 + seed] = np.nan
    return values.view(dtype)


def execute(*instructions):
    program = EXTENSION.program(b"".join(map(bytes, instructions)), 0, 0, 0, b"", 0, -1, -1)
    EXTENSION.start(program, 0, ())
    return EXTENSION.advance(program, 0.0)


@built
@pytest.mark.parametrize(("dtype", "op"), SERVED)
@pytest.mark.parametrize("into", [None, 0, 1])
def test_reductions_have_the_bits_of_numpy(dtype, op, into):
    """into: which operand the result is written to, or None."""
    operands = [hostile(dtype, seed) for seed in (0, 1)]
    with np.errstate(all="ignore"):
        expected = getattr(np, UFUNCS[op])(*operands).astype(dtype)
    result = np.empty_like(operands[0]) if into is None else operands[into]
    reduce(dtype, op, *operands, result)
    assert result.tobytes() == expected.tobytes()


@built
@pytest.mark.parametrize(
    ("dtype", "op"), [pair for pair in SERVED if np.dtype(pair[0]).kind in "fc"]
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_nan_keeps_the_bits_that_it_has_in_numpy(dtype, op, at):
    """Of either sign, with a payload, quiet and signalling; at: the operand that it is."""
    real = np.finfo(dtype).dtype
    unsigned = f"u{real.itemsize}"
    infinity = int(np.array(np.inf, real).view(unsigned))
    quiet = 1 << np.finfo(real).nmant - 1
    payloads = 1, quiet, quiet | 1 << 5, quiet - 1
    signs = 0, 1 << 8 * real.itemsize - 1
    bits = [infinity | payload | sign for payload in payloads for sign in signs]
    nans = np.array(bits, unsigned).view(real)
    others = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.finfo(real).tiny / 3], real)
    nans, others = (part.ravel() for part in np.meshgrid(np.repeat(nans, 8), others))
    operands = [others.view(dtype), nans.view(dtype)][:: 1 if at else -1]
    with np.errstate(all="ignore"):
        expected = getattr(np, UFUNCS[op])(*operands)
    result = np.empty_like(expected)
    reduce(dtype, op, *operands, result)
    assert np.isnan(result).all() and result.tobytes() == expected.tobytes()


def reduce(dtype, op, *arrays):
    """lower, higher, result."""
    kind = lowering.TYPES.index(dtype), lowering.OPS.index(op)
    places = tuple((0, array.ctypes.data) for array in arrays)
    assert execute(Packed(Code.REDUCE, kind=kind, places=places, size=arrays[0].size)) == (0, 1)


@built
@pytest.mark.parametrize(("dtype", "op"), HALVES)
def test_all_values_of_16_bits(dtype, op):
    """Each with some hundred others: zeros, the smallest, ties of the rounding, infinities, and nans."""
    every = np.arange(1 << 16, dtype="u2")
    edges = [0, 1, 2, 0x3FF, 0x400, 0x401, 0x7F, 0x80, 0x3C00, 0x3C01, 0x3F80, 0x7BFF, 0x7C00, 0x7C01, 0x7E00,
             0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF]  # fmt: skip
    others = np.array([*edges, *(edge | 0x8000 for edge in edges), *np.random.default_rng(0).integers(0, 1 << 16, 100)], "u2")
    for other in others:
        for lower, higher in ((every, np.full_like(every, other)), (np.full_like(every, other), every)):
            lower, higher = lower.view(element_type(dtype)), higher.view(element_type(dtype))
            result = np.empty_like(lower)
            reduce(dtype, op, lower, higher, result)
            with np.errstate(all="ignore"):
                expected = getattr(np, UFUNCS[op])(lower, higher)
            assert np.array_equal(result.view("u2"), expected.view("u2")), hex(other)


@built
def test_instructions_have_the_size_that_python_packs():
    assert INSTRUCTION_BYTES == EXTENSION.INSTRUCTION_BYTES


@built
@pytest.mark.parametrize("wrong", [
    Packed(11), Packed(Code.ENCODE, kind=(4, 0)), Packed(Code.DECODE, kind=(-1, 0)),
    Packed(Code.SEND, request=1), Packed(Code.WAIT, request=-1), Packed(Code.COPY, size=-1),
    Packed(Code.REDUCE, kind=(8, 4)), Packed(Code.REDUCE, kind=(99, 0)), Packed(Code.NEAR_SEND),
    Packed(Code.COPY, places=((4, 0),)), Packed(Code.SEND, size=1 << 31),
])  # fmt: skip
def test_code_that_would_leave_its_memory_is_refused(wrong):
    with pytest.raises(ValueError, match="instruction 0 of the program is invalid"):
        EXTENSION.program(bytes(wrong), 1, 0, 0, b"", 0, -1, -1)


@built
@pytest.mark.parametrize("requests", [[], [0, 0]])
def test_each_request_belongs_to_one_message(requests):
    code = b"".join(bytes(Packed(Code.RECV, request=number)) for number in requests)
    with pytest.raises(ValueError, match="each request belongs to one message"):
        EXTENSION.program(code, 1, 0, 0, b"", 0, -1, -1)


def program(*instructions, dtype="float32", op="SUM"):
    return Program((Step(0, [], [], list(instructions)),), dtype, op)


@pytest.mark.parametrize(("piece", "kinds", "reason"), [
    (Instruction(Write, 1, ((0, 8),), ()), {}, "no instruction Write"),
    (Instruction(Write, 2, ((0, 8),), ()), {}, ""),
    (Instruction(Send, 1, ((0, 1 << 31),), ()), {}, "larger than 2 GiB"),
    (Instruction(Send, 2, ((8, 8),), ()), {}, "empty"),
    (Instruction(Reduce, None, ((0, 8), (8, 16)), ((0, 8),)), {"dtype": "longdouble"}, "no SUM of longdouble"),
    (Instruction(Reduce, None, ((0, 8), (8, 16)), ((0, 8),)), {"op": "BAND"}, "no BAND of float32"),
    (Instruction(Recv, 2, ((0, 8),), ((8, 16),), operand=1), {"dtype": "longdouble"}, "no SUM of longdouble"),
    (Instruction(Reduce, None, ((0, 8), (8, 16)), ((0, 8),)), {}, ""),
])  # fmt: skip
def test_what_is_left_to_python(piece, kinds, reason):
    """Rank 2 shares memory with this one, rank 1 does not."""
    refused = lowering.refusal(program(piece, **kinds), [2])
    assert refused == reason or (reason and reason in refused)


def test_the_variable(monkeypatch):
    monkeypatch.setenv("MPICOLL_ENGINE", "python")
    assert engine.status() == (None, "MPICOLL_ENGINE=python")
    monkeypatch.setenv("MPICOLL_ENGINE", "rust")
    with pytest.raises(ArgumentError, match="MPICOLL_ENGINE=rust: expected auto, c or python"):
        settings.check()


def test_c_where_it_is_missing_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpicoll._engine", None)
    engine.library._loaded.cache_clear()
    monkeypatch.setenv("MPICOLL_ENGINE", "c")
    with pytest.raises(ImportError, match=r"MPICOLL_ENGINE=c: mpicoll._engine cannot be used \("):
        engine.require()
    monkeypatch.undo()
    engine.library._loaded.cache_clear()


@pytest.mark.parametrize("compiler", ["false", "gcc -nostdinc"], ids=["no compiler", "no headers"])
def test_without_a_compiler_there_is_no_extension_and_no_error(tmp_path, compiler):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp"]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, "CC": compiler}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.rglob("*.so"))


@built
def test_a_door_tells_lists_apart():
    """By what they hold at each call: the array may lie elsewhere, all else is the same."""
    called, passed, ledger, type_ = [], [], EXTENSION.Ledger(), object()
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * 5)(lambda *values: called.append(values) or 0)
    address = ctypes.cast(function, ctypes.c_void_p).value
    door = EXTENSION.Door(ledger, iter(()), passed, [], passed.clear, *[None] * 3, (), None, [], [], [], None, 0, 0, 0, 1000)
    x, y = np.ones(4), np.zeros(4)
    places = ((x.ctypes.data, 0, x.nbytes),)
    with pytest.raises(ValueError, match="a long list"):
        door.learn_native(([x, 4, 0, type_], 0), address, (0, 1, 2, 3, 4), (0,), bytes(8), places)
    door.learn_native(([x, 1000, type_], 0), address, (0, 1, 2, 3, 4), (0,), bytes(8), places)
    message = [x, 1000, type_]
    assert door.call(message, 0) is True
    message[:2] = y, int("1000")  # an object of its own
    assert door.call(message, 0) is True and door.call(tuple(message), 0) is True
    assert called == [(x.ctypes.data, 1, 2, 3, 4), *[(y.ctypes.data, 1, 2, 3, 4)] * 2]
    for other in (
        y, [], [y], [y, 1000], [y, 1000, type_, 0], [y, 999, type_], [y, 1000.0, type_], [y, 1000, object()],
        [y[:3], 1000, type_], [y.view("i8"), 1000, type_], [None, 1000, type_], [[y], 1000, type_],
    ):  # fmt: skip
        assert door.call(other, 0) is False, other
    ledger.every = 5  # calls, of which three have passed
    assert [door.call(message, 0) for _ in range(3)] == [True, False, False]
    assert (ledger.places, len(passed), len(called)) == (4, 4, 4)
