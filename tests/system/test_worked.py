"""The pages of symptoms: each command prints what its page shows."""

import re
from itertools import product

import pytest

from mpicoll.cluster import NAMES
from mpicoll.cluster.namespaces import unavailable
from tests.support import worked
from tests.support.launching import installations


def test_a_page_has_programs_and_commands():
    for page in worked.PAGES:
        assert worked.files(page) and len(worked.sessions(page)) >= 3, page


def sessions_on(installation, page):
    """Those of this MPI library, and on the first one also those of any."""
    mine = (NAMES[installation.name], *([""] if installation == installations()[0] else []))
    return [session for session in worked.sessions(page) if session.library in mine]


CASES = {
    f"{installation.name}-{name}": (installation, page)
    for installation, (name, page) in product(installations(), zip(worked.NAMES, worked.PAGES))
    if sessions_on(installation, page)
}


@pytest.mark.thorough
@pytest.mark.parametrize(("installation", "page"), CASES.values(), ids=CASES)
def test_commands_print_what_is_shown(installation, page, tmp_path):
    for name, text in worked.files(page).items():
        (tmp_path / name).write_text(text)
    for session in sessions_on(installation, page):
        if any("mpicoll cluster" in command for command in session.commands) and unavailable():
            pytest.skip(unavailable())
        _compare(session, installation, tmp_path)


def _compare(session, installation, folder):
    """A busy machine gets a second chance, with longer pauses."""
    expected = worked.pattern(session.shown)
    said = worked.run(session, installation, folder, 1)
    if not re.search(expected, said):
        said = worked.run(session, installation, folder, 6)
    assert re.search(expected, said), f"$ {session.commands}\nexpected {session.shown}\ngot      {said}"
