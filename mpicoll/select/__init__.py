"""Which algorithm serves a call: explicit argument > environment > tuning table > mpicoll's own table > a short probe.

May import: errors, support, schedule, collectives, algorithms, simulate, execute, measure.
"""

from . import probe, table
from .choice import SEGMENT_BYTES, Choice, Request, choose, default_segment, environment, native_below, parse_rules, refuses
from .table import rules_of

__all__ = [
    "Choice", "Request", "SEGMENT_BYTES", "choose", "default_segment", "environment", "native_below", "parse_rules",
    "probe", "refuses", "rules_of", "table",
]
