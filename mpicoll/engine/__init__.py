"""The compiled interpreter of programs: optional, and the same bits as Python's."""

from .compiled_program import Compiled, compiled
from .library import require, status

__all__ = ["Compiled", "compiled", "require", "status"]
