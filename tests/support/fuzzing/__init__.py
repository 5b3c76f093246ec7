"""A fuzzer of collective calls: random programs, made by all ranks alike, whose every byte is known beforehand.

`drawing` draws a program as plain data, `running` runs it on all ranks, `calls` makes one call of it and knows what must
come of it, `layouts` lays vectors out in memory. A program can be written down as JSON and run again.
"""

from .drawing import programs
from .running import Fuzzer

__all__ = ["Fuzzer", "programs"]
