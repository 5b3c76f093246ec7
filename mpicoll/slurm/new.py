"""Job scripts from the templates, with a user's options and settings in their places."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import ArgumentError, did_you_mean
from ..support.files import write_whole
from .job_settings import SETTING, not_elastic, wrong_setting

TEMPLATES = Path(__file__).parent / "templates"
KINDS = ("train", "train_torch", "bench", "tune", "scaling", "gpu_check")
#: what every script reads; env.sh belongs to the user as soon as it is there
SHARED = ("launch.sh", "env.sh")

_OPTION = re.compile(r"^#+SBATCH --([a-z-]+)(?:=(\S+))?(.*)$")


def write(
    kind: str,
    directory: str | Path,
    options: Mapping[str, str | None],
    settings: Mapping[str, str],
    force: bool = False,
) -> list[Path]:
    """Write a script of this kind, and what it reads, into a directory; returns the paths written.

    options: {name of an sbatch option: value, None where it takes none}, settings: {name of a
    variable at the top: value}. Raises ArgumentError for values that cannot be used, and before
    anything is written for a script that is there, unless `force`. What else is there is kept: the
    user's.
    """
    directory = Path(directory)
    names = scripts(kind, options)
    if kind == "train" and options.get("gpus-per-node"):
        options = {"ntasks-per-node": options["gpus-per-node"], **options}  # a rank each
    if settings.get("ELASTIC", "0") != "0":
        options = {"no-kill": None, **options}
    texts = {
        names[0]: fill(
            (TEMPLATES / names[0]).read_text(encoding="utf-8"), options, settings, names[0]
        )
    }
    texts |= {
        name: (TEMPLATES / name).read_text(encoding="utf-8") for name in (*names[1:], *SHARED)
    }
    if os.path.exists(directory / names[0]) and not force:
        raise ArgumentError(
            f"{directory / names[0]} is there already; remove it, or replace it with --force"
        )
    texts = {
        name: text
        for name, text in texts.items()
        if name == names[0] or not os.path.exists(directory / name)
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(directory / name, text)
            (directory / name).chmod(0o755)
    except OSError as error:
        raise ArgumentError(f"cannot write {error.filename!r}: {error.strerror}") from None
    return [directory / name for name in texts]


def scripts(kind: str, options: Mapping[str, object]) -> list[str]:
    """The names of the templates: that which takes the options, then those it submits.

    >>> scripts("train", {"gpus-per-node": 8}), scripts("scaling", {})
    (['train_gpu.sbatch'], ['scaling.sh', 'train_cpu.sbatch'])
    """
    train = "train_gpu.sbatch" if options.get("gpus-per-node") else "train_cpu.sbatch"
    scaling = ["scaling.sh", "train_cpu.sbatch"]
    return {"train": [train], "scaling": scaling}.get(kind, [f"{kind}.sbatch"])


def fill(
    text: str,
    options: Mapping[str, str | None],
    settings: Mapping[str, str],
    name: str = "template",
) -> str:
    """A template's text with values replaced; options it lacks are added after its own."""
    lines = text.splitlines()
    options = dict(options)
    settings = dict(settings)
    last = max((number for number, line in enumerate(lines) if _OPTION.match(line)), default=-1)
    if options and last < 0:
        raise ArgumentError(
            f"{name} is no batch script: it hands sbatch's options on, so give them when you run it"
        )
    for number, line in enumerate(lines):
        lines[number] = _filled(line, options, settings)
    if settings:
        names = ", ".join(
            match[1]
            for match in map(SETTING.match, text.splitlines())
            if match and match[1] != "JOBS"
        )
        hint = did_you_mean(next(iter(settings)), names.split(", "))
        raise ArgumentError(f"{name} has no setting {', '.join(settings)}; it has {names}{hint}")
    if options:
        lines[last] += "".join(f"\n{_given(key, value)}" for key, value in options.items())
    _must_be_right(
        not_elastic({match[1]: match[2] for match in map(SETTING.match, lines) if match})
    )
    return "\n".join([*lines, ""])


def _filled(line: str, options: dict[str, str | None], settings: dict[str, str]) -> str:
    """The line with the value that it is for, which is then used up."""
    if (match := _OPTION.match(line)) and match[1] in options:
        return _given(match[1], options.pop(match[1])) + match[3]
    if (match := SETTING.match(line)) and match[1] in settings:
        value = settings.pop(match[1])
        if re.search(r'["{}\\`\x00-\x1f\x7f]|\$(?![A-Za-z_])', value):
            expected = (
                "no quotes, braces, backslashes, backticks or line ends, and $ only before a name"
            )
            raise ArgumentError(f"{match[1]}: expected {expected}, got {value!r}")
        _must_be_right(wrong_setting(match[1], value))
        return f': "${{{match[1]}:={value}}}"{match[3]}'
    return line


def _given(option: str, value: str | None) -> str:
    """The line that gives sbatch an option."""
    if value is None:
        return f"#SBATCH --{option}"
    if not value or re.search(r"""[\s"'\\#`$\x00-\x1f\x7f]""", value):
        raise ArgumentError(
            f"--{option}: expected no spaces, quotes, backslashes, $, # or line ends, got {value!r}"
        )
    return f"#SBATCH --{option}={value}"


def _must_be_right(wrong: str) -> None:
    if wrong:
        raise ArgumentError(wrong)
