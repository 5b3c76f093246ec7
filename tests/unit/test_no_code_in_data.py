"""What users pass is data: it reaches no shell as code, no file of theirs is unpickled, no result is half written."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll
from mpicoll.errors import ArgumentError
from mpicoll.slurm import mistakes, write
from mpicoll.support.files import write_whole

PACKAGE = Path(mpicoll.__file__).parent
#: names that run what they read, and the keywords of such
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "eval", "exec", "system", "popen", "getoutput",
             "literal_eval", "__import__", "yaml"}  # fmt: skip
ODD = ["$(touch x)", "`touch x`", "a\nsrun touch x", 'a"; touch x; "', "a'; touch x; '", "a; touch x", "${x:=$(touch x)}",
       "a b", "a\\", "a#b", "\r", "$((1))", "a && touch x", "| touch x", "> x"]  # fmt: skip


def names_in(path):
    """Names that a module imports, reads or calls, and keywords that it gives as true."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (part for one in node.names for part in one.name.split("."))
            yield from (getattr(node, "module", None) or "").split(".")
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle") and ast.unparse(node.value) != "False":
            yield f"{node.arg}={ast.unparse(node.value)}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_runs_what_it_reads(path):
    assert not {name for name in names_in(path) if name in FORBIDDEN or "=" in name}


# ---- job scripts


@pytest.mark.parametrize("text", ODD)
def test_no_setting_is_code(tmp_path, text):
    """What a script's setting says is what the shell then has in it, to the letter; or it is refused."""
    try:
        path = write("train", tmp_path, {}, {"DATA": text})[0]
    except ArgumentError as error:
        assert "DATA: expected no" in str(error)
        assert not list(tmp_path.iterdir())
        return
    line = next(line for line in path.read_text().splitlines() if ":=" in line and "{DATA" in line)
    command = ["bash", "-c", f'{line}\nprintf %s "$DATA"']
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == text and not (tmp_path / "x").exists()


@pytest.mark.parametrize("text", ["", *ODD])
def test_no_option_is_another_line(tmp_path, text):
    """Options of sbatch stay on their line, one word each."""
    for name in ("job-name", "qos"):  # one that the template has, one that it has not
        try:
            path = write("bench", tmp_path, {name: text}, {}, force=True)[0]
        except ArgumentError as error:
            assert f"--{name}: expected no" in str(error)
        else:
            assert f"\n#SBATCH --{name}={text}" in path.read_text() and len(text.split()) == 1


def test_settings_may_name_variables(tmp_path):
    assert '"${OUT:=$SLURM_SUBMIT_DIR/out}"' in write("train", tmp_path, {}, {"OUT": "$SLURM_SUBMIT_DIR/out"})[0].read_text()


def test_a_sweep_in_a_directory_with_an_odd_name(tmp_path):
    """The job that draws it runs in a shell of its own: sbatch hands its words on as they are."""
    odd = tmp_path / "a 'b' $(touch x) \"c"
    (odd / "bin").mkdir(parents=True)
    sbatch = 'echo 7\nwhile [ $# -gt 0 ]; do [ "$1" != --wrap ] || exec sh -c "$2" >&2; shift; done'
    for name, text in ("sbatch", sbatch), ("python", 'printf "%s\\n" "$@"'):
        (odd / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (odd / "bin" / name).chmod(0o755)
    script = shutil.copy(PACKAGE / "slurm" / "templates" / "scaling.sh", odd)
    settings = {"PATH": f"{odd}/bin:{os.environ['PATH']}", "VENV": str(odd), "COUNTS": "1"}
    done = subprocess.run(["bash", script], cwd=odd, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = f"{odd}/scaling"
    assert done.stderr.splitlines() == ["-m", "mpicoll", "slurm", "scaling", out, "--plot", f"{out}/scaling.svg"]
    assert not (odd / "x").exists()


@pytest.mark.parametrize("name", ["-n 1.sh", "a b.sh", "$(touch x).sh", "'.sh"])
def test_scripts_with_odd_names_are_checked(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("#!/bin/bash\ntrue\n")
    mistakes(name)
    assert sorted(os.listdir()) == [name]


# ---- results


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "result.json"
    for size in (10, 1 << 20):
        write_whole(path, "x" * size)
        assert path.stat().st_size == size and os.listdir(tmp_path) == ["result.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """The limit on the size of files stands for it."""
    path = tmp_path / "result.json"
    path.write_text("old")
    code = f"""if True:
        import resource, signal, sys
        from mpicoll.support.files import write_whole
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_whole({str(path)!r}, "x" * 5000)
        except ValueError as error:
            sys.exit(f"{{type(error).__name__}}: {{error}}")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ArgumentError: cannot write" in done.stderr and "File too large" in done.stderr
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["result.json"]


def test_links_and_modes_stay(tmp_path):
    path, link = tmp_path / "result.json", tmp_path / "latest.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink() and path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640


def test_devices_are_written_to(tmp_path):
    write_whole(os.devnull, "gone")
    with pytest.raises(ArgumentError, match="cannot write"):
        write_whole(tmp_path / "missing" / "result.json", "x")
    assert not list(tmp_path.iterdir())
