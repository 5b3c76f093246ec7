"""The compiled interpreter of programs: optional, and the same bits as Python's."""

from .compiled_program import Compiled, compiled, reduces
from .library import has_doors, require, status

__all__ = ["Compiled", "compiled", "has_doors", "reduces", "require", "status"]
