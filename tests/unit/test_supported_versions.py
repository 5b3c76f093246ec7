"""The oldest versions that `setup.cfg` admits are those that `.ci/versions` installs."""

import configparser
import json
import re

from tests.support.launching import ROOT


def test_the_oldest_case_is_what_setup_cfg_admits():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    oldest = json.loads((ROOT / ".ci/versions.json").read_text())["cases"]["oldest"]
    admitted = dict(re.findall(r"^(\w+)>=(\S+)$", setup["options"]["install_requires"], re.MULTILINE))
    assert f">={oldest['python']}" == setup["options"]["python_requires"]
    assert {name: f"{version}.0" for name, version in admitted.items()} == {name: oldest[name] for name in admitted}
    assert set(admitted) == {"numpy", "mpi4py"}
