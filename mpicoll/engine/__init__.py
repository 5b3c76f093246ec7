"""The compiled interpreter of programs: optional, and the same bits as Python's."""

from .compiled_program import Compiled, compiled
from .library import has_doors, require, status
from .lowering import reduces

__all__ = ["Compiled", "compiled", "has_doors", "reduces", "require", "status"]
