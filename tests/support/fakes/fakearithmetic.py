"""NumPy's arithmetic for the stand-in for CuPy, as much as training needs.

`install` gives the arrays of `fakecupy` operators, methods and NumPy's functions. Stricter than
CuPy in the same way: each operation reads and writes in the current stream of its thread, so that a
wrong order raises `Race`. `reads` lists each time that the host waited for a value (`float`,
`bool`, `tolist`), with the number of elements: in CuPy that is easily overlooked.
"""

import operator
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from tests.support.fakes import fakecupy

reads = []

_OPERATORS = ("add", "sub", "mul", "truediv", "matmul", "pow", "and", "or", "lshift", "rshift",
              "lt", "le", "gt", "ge", "eq", "ne")  # fmt: skip
_METHODS = ("sum", "max", "argmax", "astype", "any", "all", "copy", "transpose")
_MADE = ("zeros", "ones", "full", "arange")
_FUNCTIONS = ("concatenate", "stack", "isfinite", "isnan", "exp", "log", "maximum", "matmul", "where", "zeros_like",
              "empty_like", "sqrt", "invert", "ascontiguousarray", "abs", "sign")  # fmt: skip


def install(monkeypatch):
    """CuPy for this test: a module of its own, over the stand-in."""
    cupy, kind = ModuleType("cupy"), fakecupy.ndarray
    cupy.__spec__ = fakecupy.__spec__
    for name in _OPERATORS:
        symbol = getattr(operator, f"__{name}__")
        set_to(monkeypatch, kind, f"__{name}__", lambda one, other, symbol=symbol: computed(symbol, one, other))
        set_to(monkeypatch, kind, f"__r{name}__", lambda one, other, symbol=symbol: computed(symbol, other, one))
        set_to(monkeypatch, kind, f"__i{name}__", lambda one, other, symbol=symbol: into(one, symbol, one, other))
    for name in _METHODS:
        method = lambda one, *given, name=name, **options: computed(getattr(np.ndarray, name), one, *given, **options)
        set_to(monkeypatch, kind, name, method)
    for name, value in _others().items():
        set_to(monkeypatch, kind, name, value)
    for name in _FUNCTIONS:
        setattr(cupy, name, lambda *given, f=getattr(np, name), **options: computed(f, *given, **options))
    for name in _MADE:
        setattr(cupy, name, lambda *given, f=getattr(np, name), **options: fakecupy.array(f(*given, **options)))
    for name in ("ndarray", "array", "empty", "asarray", "asnumpy", "copyto"):
        setattr(cupy, name, getattr(fakecupy, name))
    cuda = {**vars(fakecupy.cuda), "get_elapsed_time": lambda one, other: 0.0}
    cupy.cuda, cupy.__version__ = SimpleNamespace(**cuda), "0"
    cupy.__getattr__ = lambda name: getattr(fakecupy, name)
    reads.clear()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


def set_to(monkeypatch, kind, name, value):
    monkeypatch.setattr(kind, name, value, raising=False)


def _others():
    return {
        "__array_ufunc__": _ufunc,
        "__neg__": lambda one: computed(operator.neg, one),
        "__invert__": lambda one: computed(operator.invert, one),
        "__float__": lambda one: float(read(one)),
        "__int__": lambda one: int(read(one)),
        "__bool__": lambda one: bool(read(one)),
        "tolist": lambda one: read(one).tolist(),
        "tobytes": lambda one: read(one).tobytes(),
        "fill": lambda one, value: one._write(value),
        "__getitem__": _item,
        "__setitem__": _set_item,
    }


def _item(one, key):
    """A view; of places that an array says, a copy."""
    if gathers(key):
        return fakecupy.array(value(one)[values(key)])
    return fakecupy.ndarray(one._memory, one._view[key if Ellipsis in parts(key) else (*parts(key), Ellipsis)])


def _set_item(one, key, new):
    if gathers(key):
        whole = value(one)
        whole[values(key)] = value(new)
        one._write(whole)
    else:
        _item(one, key)._write(value(new))


def parts(key):
    return key if isinstance(key, tuple) else (key,)


def gathers(key):
    return any(isinstance(part, fakecupy.ndarray) for part in parts(key))


def values(key):
    return tuple(map(value, parts(key)))


def read(one):
    """What a number is, on the host."""
    reads.append(one.size)
    return fakecupy.asnumpy(one)


def value(one):
    return one._read() if isinstance(one, fakecupy.ndarray) else one


def computed(function, *given, out=None, **options):
    """A new array, or `out`, with what a function of NumPy makes of these."""
    given = [[value(one) for one in each] if isinstance(each, (list, tuple)) else value(each) for each in given]
    result = np.asarray(function(*given, **options))
    if out is None:
        return fakecupy.array(result)
    out._write(result)
    return out


def into(target, function, *given):
    target._write(value(computed(function, *given)))
    return target


def _ufunc(self, ufunc, method, *given, out=(None,), **options):
    assert method == "__call__"
    return computed(ufunc, *given, out=out[0], **options)
