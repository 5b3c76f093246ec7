"""What a run says of itself: times, timelines, metrics, the progress bar, the summary.

May import: errors, support, measure.
"""

from .meter import Meter
from .metrics import metrics_file
from .progress_bar import progress_bar
from .summary import document, finite, summary
from .trace import write

__all__ = ["Meter", "document", "finite", "metrics_file", "progress_bar", "summary", "write"]
