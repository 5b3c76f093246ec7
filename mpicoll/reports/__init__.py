"""Reports of what ranks were doing, and their analysis: who is missing, who waits for whom.

A report is JSON (`State`):

    {"schema": 1, "rank": 2, "size": 4, "host": "node7", "pid": 123, "time": 1.7e9,
     "at": "solver.py:88", "threads": ["loader.py:12"], "ended": false, "failed": "",
     "last_words": false, "heard": [], "unheard": [],
     "rates": {"calls": 120.0, "bytes": 3.1e8, "inside": 0.4},
     "communicators": [{"name": "5f3a.0", "rank": 2, "ranks": [0, 1, 2, 3], "calls": 41,
                        "broken": "", "given_up_by": null,
                        "under_way": [{"number", "place", "call", "where", "site", "seconds",
                                       "peer", "inside"}],
                        "past": [{"number", "call", "seconds"}]}]}

Ranks are those of the world; `ranks` of a communicator are its members.

- `at`: the line of the main thread; `threads`: those of other threads that run the user's code.
- `broken`: why no further call is served, or ""; `given_up_by`: the other rank that said so.
- `past`: the last calls, with the seconds since they ended.
- `peer`: the rank whose message a call waits for, or null.
- `inside`: where user code runs in the middle of a call, or "".
- `given_up`: a call that was abandoned; it stays under way until its communicator is freed.
- `heard`, `unheard`: the ranks that answered when this rank asked what they do, and that did not.
- `failed`: the error that ended this rank; `last_words`: whether it ended the job.
- `rates`: since the report before: calls and bytes sent in schedules per second, and the share of
  time spent in calls.

The file rank-00002.died has the time of a death before the end of the program, `died` in states
that are read. The file rank-00002.calls has the last calls (`PastCall`), `history` in such states.
"""

from .diagnosis import diagnose
from .divergence import first_divergence
from .files import (
    SCHEMA,
    History,
    PastCall,
    State,
    death_file,
    past_calls,
    read_reports,
    write_report,
)
from .live import live_table
from .waiting import PATIENCE

__all__ = [
    "PATIENCE",
    "SCHEMA",
    "History",
    "PastCall",
    "State",
    "death_file",
    "diagnose",
    "first_divergence",
    "live_table",
    "past_calls",
    "read_reports",
    "write_report",
]
