"""Which algorithm serves a call: argument, environment, tuning table, own table, or a probe."""

from . import probe, table
from .choice import (
    Choice,
    Query,
    choose,
    environment_rules,
    is_named,
    native_below,
    reduces_on_device,
)
from .table import read_tables, rules_of

__all__ = [
    "Choice", "Query", "choose", "environment_rules", "is_named", "native_below",
    "probe", "read_tables", "reduces_on_device", "rules_of", "table",
]
