"""The compiled interpreter in one process: the bits of NumPy, what it refuses, and an installation without it."""

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from mpicoll import engine
from mpicoll.binding import Instruction, Program, Step
from mpicoll.engine import lowering
from mpicoll.engine.lowering import CODE, Code
from mpicoll.errors import ArgumentError
from mpicoll.schedule import Reduce, Send, Write
from mpicoll.support import settings
from tests.support.launching import ROOT

EXTENSION = engine.status().extension
built = pytest.mark.skipif(EXTENSION is None, reason=f"no compiled interpreter: {engine.status().reason}")
UFUNCS = {"SUM": "add", "PROD": "multiply", "MAX": "maximum", "MIN": "minimum",
          "BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}  # fmt: skip
#: those that Python serves
LEFT_OUT = {(dtype, op) for dtype in ("float32", "float64") for op in UFUNCS if op not in ("SUM", "PROD")}
SERVED = [pair for pair in product(lowering._TYPES, lowering._OPS) if pair not in LEFT_OUT]


def hostile(dtype, seed):
    """Values of all bits: infinities, denormals, signed zeros; for floats no two nans meet, whose payloads no rule orders."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 256, 1003 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    if values.dtype.kind == "f":
        values[np.isnan(values)] = [np.inf, -0.0][seed]
        values[:4] = [0.0, -0.0, np.inf, np.finfo(dtype).tiny / 3]
        values[4 + seed] = np.nan
    return values


def execute(*instructions):
    program = EXTENSION.program(b"".join(instructions), 0, 0)
    EXTENSION.start(program, 0, ())
    return EXTENSION.advance(program, 0.0)


@built
@pytest.mark.parametrize(("dtype", "op"), SERVED)
@pytest.mark.parametrize("into", [None, 0, 1])
def test_reductions_have_the_bits_of_numpy(dtype, op, into):
    """into: which operand the result is written to, or None."""
    operands = [hostile(dtype, seed) for seed in (0, 1)]
    with np.errstate(all="ignore"):
        expected = getattr(np, UFUNCS[op])(*operands)
    result = np.empty_like(operands[0]) if into is None else operands[into]
    kind = lowering._TYPES.index(dtype), lowering._OPS.index(op)
    places = [array.ctypes.data for array in (*operands, result)]
    assert execute(CODE.pack(Code.REDUCE, 0, 0, *kind, 0, 0, 0, *places, result.size)) == (0, 1)
    assert result.tobytes() == expected.tobytes()


@built
def test_instructions_have_the_size_that_python_packs():
    assert CODE.size == EXTENSION.INSTRUCTION_BYTES


@built
@pytest.mark.parametrize("wrong", [
    (9, 0, 0, 0, 0), (Code.SEND, 0, 1, 0, 0), (Code.WAIT, 0, -1, 0, 0), (Code.REDUCE, 0, 0, 8, 2), (Code.REDUCE, 0, 0, 99, 0),
])  # fmt: skip
def test_code_that_would_leave_its_memory_is_refused(wrong):
    with pytest.raises(ValueError, match="instruction 0 of the program is invalid"):
        EXTENSION.program(CODE.pack(*wrong, 0, 0, 0, 0, 0, 0, 8), 1, 0)


def program(*instructions, dtype="float32", op="SUM"):
    return Program((Step(0, [], [], list(instructions)),), dtype, op)


@pytest.mark.parametrize(("piece", "kinds", "reason"), [
    (Instruction(Write, 1, ((0, 8),), ()), {}, "no instruction Write"),
    (Instruction(Send, 1, ((0, 1 << 31),), ()), {}, "larger than 2 GiB"),
    (Instruction(Reduce, None, ((0, 8), (8, 16)), ((0, 8),)), {"dtype": "float16"}, "no SUM of float16"),
    (Instruction(Reduce, None, ((0, 8), (8, 16)), ((0, 8),)), {"op": "MAX"}, "no MAX of float32"),
    (Instruction(Reduce, None, ((0, 8), (8, 16)), ((0, 8),)), {}, ""),
])  # fmt: skip
def test_what_is_left_to_python(piece, kinds, reason):
    refused = lowering.refusal(program(piece, **kinds))
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


def test_without_a_compiler_there_is_no_extension_and_no_error(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp"]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, "CC": "false"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.rglob("*.so"))
