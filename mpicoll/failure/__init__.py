"""What ranks did, and what is left where one fails: records of calls, dead ranks, withdrawal."""

from .owning import owning
from .recorder import (
    ENDED,
    KEPT,
    Located,
    Mark,
    Past,
    Record,
    Recorder,
    Resumable,
    mark_of,
    past,
    past_with_passed,
    remembered,
)
from .survival import all_agree, deaths, lowest_alive, note_missing, outnumbers, refusal, survivable
from .withdrawal import ABANDONED, Withdrawable, cancelled, still_under_way

__all__ = [
    "ABANDONED", "ENDED", "KEPT", "Located", "Mark", "Past", "Record", "Recorder", "Resumable",
    "Withdrawable", "all_agree", "cancelled", "deaths", "lowest_alive", "mark_of", "note_missing",
    "outnumbers", "owning", "past", "past_with_passed", "refusal", "remembered", "still_under_way",
    "survivable",
]  # fmt: skip
