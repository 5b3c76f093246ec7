"""The extension, compiled by any compiler with the options of setup.py."""

import ast
import os
import platform
import sysconfig
from pathlib import Path

from tests.support.launching import ROOT, completed

SOURCE = ROOT / "mpicoll/_engine.c"
HEADERS = Path(sysconfig.get_path("include"))
LIBRARY = ("-fPIC", "-shared")
#: a program without Python: it calls no function of Python's
PROGRAM = ("-pthread", "-Wl,--unresolved-symbols=ignore-all")


def _options():
    setup = ast.walk(ast.parse((ROOT / "setup.py").read_text()))
    given = [word for word in setup if isinstance(word, ast.keyword) and word.arg == "extra_compile_args"]
    [options] = map(ast.literal_eval, (word.value for word in given))
    return options


OPTIONS = _options()


def compiled(compiler, output, *more, source=SOURCE):
    """Where it was compiled to; raises with what the compiler prints where it cannot."""
    words = [compiler, *OPTIONS, *more, f"-I{HEADERS}", source, "-o", output]
    completed(*words, env=environment_of(compiler, output.parent))
    return output


def environment_of(compiler, folder):
    """Of a compiler that may be another machine's. folder: for what it needs.

    Debian's pyconfig.h includes one in a folder of the architecture that is compiled for: this machine's serves all.
    """
    own = HEADERS.parent / f"{platform.machine()}-linux-gnu"
    headers = folder / "headers"
    if own.exists() and not headers.exists():
        headers.mkdir()
        for architecture in ("x86_64", "aarch64"):
            (headers / f"{architecture}-linux-gnu").symlink_to(own)
    return {**os.environ, "CC": str(compiler), "LDSHARED": f"{compiler} -shared", "CPATH": str(headers)}
