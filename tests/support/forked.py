"""Child processes that are forked in a test."""

import os
import signal
import warnings

from tests.support.launching import PATIENCE


def status_of_child(function):
    """Fork; 0 where the function returns True in the child. A child that hangs is killed."""
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        status = 1
        try:
            status = 0 if function() else 2
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]
