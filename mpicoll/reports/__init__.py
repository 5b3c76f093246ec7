"""What ranks were doing, read from their files: who is missing, who waits for whom.

A report is JSON (`State`):

    {"schema": 1, "rank": 2, "size": 4, "host": "node7", "pid": 123, "time": 1.7e9, "at": "solver.py:88",
     "ended": false, "failed": "", "last_words": false, "heard": [], "unheard": [],
     "rates": {"calls": 120.0, "bytes": 3.1e8, "inside": 0.4},
     "communicators": [{"name": "5f3a.0", "rank": 2, "ranks": [0, 1, 2, 3], "calls": 41, "broken": "",
                        "under_way": [{"number", "place", "call", "where", "site", "seconds", "peer", "inside"}],
                        "past": [{"number", "call", "seconds"}]}]}

All ranks are those in the world. `ranks`: of a communicator. `past`: its last calls, with the seconds since they ended.
`peer`: whose message a call waits for, or null. `inside`: where the user's own code runs in the middle of a call, or
"". A call that was given up (`given_up`) stays under way until its communicator is freed. `heard`, `unheard`: who
answered when this rank asked what the others are doing, and who did not. `failed`: what ended this rank before its end.
`last_words`: it ended the job. `rates`: calls and bytes sent in schedules per second, and the share of time spent in
calls, since the report before. Beside them rank-00002.died has the time of a death before the end; as `died` it is in
the states that are read. rank-00002.calls has the last calls of the rank (`PastCall`), as `history` in these states.
"""

from .diagnosis import diagnose
from .divergence import first_divergence
from .files import SCHEMA, History, PastCall, State, death_file, past_calls, read_reports, write_report
from .live import live_table
from .waiting import PATIENCE

__all__ = [
    "PATIENCE", "SCHEMA", "History", "PastCall", "State", "death_file", "diagnose", "first_divergence", "live_table",
    "past_calls", "read_reports", "write_report",
]
