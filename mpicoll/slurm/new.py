"""Job scripts from the templates, with a user's options and settings in their places."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import ArgumentError, did_you_mean
from ..support.files import write_whole
from .job_settings import SETTING, not_elastic, wrong_setting

TEMPLATES = Path(__file__).parent / "templates"
KINDS = ("train", "train_torch", "bench", "doctor", "tune", "scaling", "gpu_check")
#: files that every script reads; an existing env.sh belongs to the user
SHARED = ("launch.sh", "env.sh")

_OPTION = re.compile(r"^#+SBATCH --([a-z-]+)(?:=(\S+))?(.*)$")


def write(
    kind: str,
    directory: str | Path,
    options: Mapping[str, str | None],
    settings: Mapping[str, str],
    force: bool = False,
) -> list[Path]:
    """Write a script of this kind, and the files that it reads; returns the paths written.

    options: {name of an sbatch option: value, None where it takes none}, settings: {name of a
    variable at the top: value}. Raises ArgumentError for wrong values, and, before it writes
    anything, for an existing script, unless `force`. It replaces no other existing file.
    """
    directory = Path(directory)
    names = scripts(kind, options)
    if kind == "train" and options.get("gpus-per-node"):
        options = {"ntasks-per-node": options["gpus-per-node"], **options}  # a rank per GPU
    if settings.get("ELASTIC", "0") != "0":
        options = {"no-kill": None, **options}
    script, *others = names
    texts = {script: fill(_template(script), options, settings, script)}
    path = directory / script
    if os.path.exists(path) and not force:
        raise ArgumentError(f"{path} is there already; remove it, or replace it with --force")
    for name in (*others, *SHARED):
        if not os.path.exists(directory / name):
            texts[name] = _template(name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(directory / name, text)
            (directory / name).chmod(0o755)
    except OSError as error:
        raise ArgumentError(f"cannot write {error.filename!r}: {error.strerror}") from None
    return [directory / name for name in texts]


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def scripts(kind: str, options: Mapping[str, object]) -> list[str]:
    """The names of the templates: the script with the options, then the scripts that it submits.

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
    values = {match[1]: match[2] for match in map(SETTING.match, lines) if match}
    if settings:
        names = [setting for setting in values if setting != "JOBS"]
        hint = did_you_mean(next(iter(settings)), names)
        unknown = ", ".join(settings)
        raise ArgumentError(f"{name} has no setting {unknown}; it has {', '.join(names)}{hint}")
    if options:
        lines[last] += "".join(f"\n{_sbatch_line(key, value)}" for key, value in options.items())
    _raise(not_elastic(values))
    return "\n".join([*lines, ""])


def _filled(line: str, options: dict[str, str | None], settings: dict[str, str]) -> str:
    """The line with its value, which is removed from options or settings."""
    if (match := _OPTION.match(line)) and match[1] in options:
        return _sbatch_line(match[1], options.pop(match[1])) + match[3]
    if (match := SETTING.match(line)) and match[1] in settings:
        value = settings.pop(match[1])
        if re.search(r'["{}\\`\x00-\x1f\x7f]|\$(?![A-Za-z_])', value):
            expected = (
                "no quotes, braces, backslashes, backticks or line ends, and $ only before a name"
            )
            raise ArgumentError(f"{match[1]}: expected {expected}, got {value!r}")
        _raise(wrong_setting(match[1], value))
        return f': "${{{match[1]}:={value}}}"{match[3]}'
    return line


def _sbatch_line(name: str, value: str | None) -> str:
    """The line with an option of sbatch."""
    if value is None:
        return f"#SBATCH --{name}"
    if not value or re.search(r"""[\s"'\\#`$\x00-\x1f\x7f]""", value):
        raise ArgumentError(
            f"--{name}: expected no spaces, quotes, backslashes, $, # or line ends, got {value!r}"
        )
    return f"#SBATCH --{name}={value}"


def _raise(problem: str) -> None:
    """Raise ArgumentError, unless the problem is ""."""
    if problem:
        raise ArgumentError(problem)
