"""What a run says of itself: times, timelines, metrics, the progress bar, the summary."""

from .bar import Advance, progress_bar
from .clock import Mark
from .meter import Meter
from .metrics import Log, metrics_log
from .report import document, finite, summary

__all__ = [
    "Advance",
    "Log",
    "Mark",
    "Meter",
    "document",
    "finite",
    "metrics_log",
    "progress_bar",
    "summary",
]
