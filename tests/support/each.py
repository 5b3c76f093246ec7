"""Which MPI a test that starts jobs runs on: each one found here, or one of them where little depends on the library.

What has passed with the first library is repeated with the others under `-m thorough`. MPICOLL_TEST_ALL=1: always with each.
"""

import os

import pytest

from tests.support.launching import installations

ALL = bool(os.environ.get("MPICOLL_TEST_ALL"))


def _on(found):
    cases = [pytest.param(one, marks=[pytest.mark.thorough] * (one != found[0])) for one in found]
    return pytest.mark.parametrize("installation", cases, ids=lambda one: one.name)


EACH = _on(installations())
#: the two share the work: what is tried with one of them only is spread over both
ONE, OTHER = (EACH, EACH) if ALL else (_on(installations()[:1]), _on(installations()[-1:]))
