"""The compiled interpreter of programs: optional, and the same bits as Python's."""

from .attending import Attendance
from .compiled_program import Caller, Compiled, Held, compiled
from .library import address_of, has_doors, require, status
from .lowering import reduces

__all__ = [
    "Attendance", "Caller", "Compiled", "Held", "address_of", "compiled", "has_doors", "reduces",
    "require", "status",
]  # fmt: skip
