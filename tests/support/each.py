"""Which MPI a test that starts jobs runs on: each one found here, or one of them where little depends on the library.

MPICOLL_TEST_ALL=1: always each.
"""

import os

import pytest

from tests.support.launching import installations

ALL = bool(os.environ.get("MPICOLL_TEST_ALL"))


def _on(found):
    return pytest.mark.parametrize("installation", found, ids=lambda one: one.name)


EACH = _on(installations())
#: what takes so long that all together may take a quarter of an hour no more
SLOW = pytest.mark.skipif(not ALL, reason="takes long: MPICOLL_TEST_ALL=1 runs it")
#: the two share the work: what is tried with one of them only is spread over both
ONE, OTHER = (EACH, EACH) if ALL else (_on(installations()[:1]), _on(installations()[-1:]))
