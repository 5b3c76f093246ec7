"""Job scripts written and checked, and sweeps gathered, without SLURM."""

import json
import re
import subprocess
from importlib import import_module

import pytest

from mpicoll.cli import main
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError
from mpicoll.slurm.check import mistakes
from mpicoll.slurm.new import KINDS, fill, write
from mpicoll.slurm.scaling import gather, table
from mpicoll.slurm.job_settings import WORDS
from mpicoll.train.options import SHARDED
from tests.support.launching import ROOT

JOBS = ROOT / "jobs"
TEMPLATES = sorted(JOBS.glob("*.sbatch"))


def said(script, tmp_path, text):
    path = tmp_path / script
    path.write_text(text)
    return {line: message for line, message in mistakes(path)}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_are_short_and_have_no_known_mistake(template):
    lines = template.read_text().splitlines()
    assert 15 <= len(lines) <= 40 and max(map(len, lines)) <= 128
    assert not mistakes(template)


@pytest.mark.parametrize("script", [*TEMPLATES, *JOBS.glob("*.sh")], ids=lambda path: path.name)
def test_templates_are_bash(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_what_templates_import_exists():
    found = re.findall(r"from (mpicoll[\w.]*) import (\w+)", (JOBS / "launch.sh").read_text())
    assert found
    for module, name in found:
        assert hasattr(import_module(module), name), module


@pytest.mark.parametrize("kind", KINDS)
def test_new_writes_what_a_job_needs(kind, tmp_path):
    written = write(kind, tmp_path, {}, {})
    assert {path.name for path in written} >= {"launch.sh", "env.sh"}
    for path in written:
        assert path.read_text() == (JOBS / path.name).read_text()
        assert not path.name.endswith(".sbatch") or not mistakes(path)


def test_new_fills_in(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "new", "train", "--directory", str(tmp_path), "--nodes", "6", "--gpus-per-node", "8", "--mem", "64G",
              "--partition", "gpu", "--set", "STRATEGY=zero1", "--set", "DATA=$HOME/data.npz"])  # fmt: skip
    assert not ended.value.code and f"sbatch {tmp_path}/train_gpu.sbatch" in capsys.readouterr().out
    lines = (tmp_path / "train_gpu.sbatch").read_text().splitlines()
    for line in ("#SBATCH --nodes=6", "#SBATCH --gpus-per-node=8", "#SBATCH --ntasks-per-node=8", "#SBATCH --partition=gpu",
                 "#SBATCH --mem=64G", ': "${STRATEGY:=zero1}"', ': "${DATA:=$HOME/data.npz}"'):  # fmt: skip
        assert [found for found in lines if found.startswith(line)], line
    assert "##SBATCH --account=NAME" in "\n".join(lines)
    assert not mistakes(tmp_path / "train_gpu.sbatch")


def test_new_keeps_what_is_there(tmp_path):
    write("train", tmp_path, {}, {})
    (tmp_path / "env.sh").write_text("module load ours\n")
    with pytest.raises(ArgumentError, match="is there already; remove it, or replace it with --force"):
        write("train", tmp_path, {"nodes": "2"}, {})
    write("train", tmp_path, {"nodes": "2"}, {}, force=True)
    assert "--nodes=2" in (tmp_path / "train_cpu.sbatch").read_text()
    assert (tmp_path / "env.sh").read_text() == "module load ours\n"


@pytest.mark.parametrize(("options", "settings", "message"), [
    ({}, {"STRATEGIE": "zero1"}, "no setting STRATEGIE; it has LAUNCHER, VENV, STRATEGY"),
    ({}, {"DATA": 'a"b'}, "expected no quotes"), ({}, {"DATA": "a}b"}, "expected no quotes"),
])  # fmt: skip
def test_new_refuses(options, settings, message):
    with pytest.raises(ArgumentError, match=message):
        fill((JOBS / "train_cpu.sbatch").read_text(), options, settings)


def test_new_refuses_options_of_what_is_no_batch_script(tmp_path):
    with pytest.raises(ArgumentError, match="give them when you run it"):
        write("scaling", tmp_path, {"nodes": "2"}, {})
    with pytest.raises(ArgumentError, match="cannot write"):
        write("train", "/proc/nowhere", {}, {})


GOOD = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
srun -K --mpi=pmix python -m mpi4py train.py
"""


@pytest.mark.parametrize(("old", "new", "line", "message"), [
    ("--ntasks-per-node=2", "--ntasks=4", 2, "--ntasks alone fills nodes unevenly"),
    ("srun", ': "${LAUNCHER:=jsrun}"\nsrun', 3, "expected auto, srun, mpirun, mpiexec"),
    ("srun", ': "${STRATEGY:=zero9}"\nsrun', 3, "STRATEGY=zero9: expected parameter_server, allreduce, zero1, zero2, diloco"),
    ("train.py", "train.py --checkpoint $TMPDIR/run", 3, "--checkpoint=$TMPDIR/run: each node has a directory of its own"),
    ("srun", ': "${DATA:=/tmp/x.npz}"\nsrun', 3, "a directory of its own"),
    ("srun", ': "${VENV:=/nowhere}"\nsrun', 3, "there is no bin/python"),
    ("srun", ': "${ELASTIC:=2}"\nsrun', 3, "ELASTIC=2 without #SBATCH --no-kill: SLURM ends the job when it loses a node"),
    ("srun", ': "${ELASTIC:=yes}"\nsrun', 3, "ELASTIC=yes: expected the fewest nodes to go on with, or 0: off"),
    ("srun", '. "$JOBS/launch.sh" || exit\nsrun', 3, "belong beside the script"),
    (" --mpi=pmix", "", 3, "as many programs of one rank each"),
    (" -K", "", 3, "waits for the other ranks when one is killed"),
    ("-m mpi4py ", "", 3, "install_abort_hook() in train.py ends them all"),
    ("srun -K --mpi=pmix python -m mpi4py", "env X=1 mpirun python", 3, "install_abort_hook() in train.py ends them all"),
    ("--nodes=2", "--nodes=2 --signal=B:USR1@60", 2, "has no trap for it"),
    ("srun", "trap : USR1\nsrun", 4, "a trap runs only after"),
    ("train.py\n", "train.py\necho done\n", 3, "COMPLETED even if srun fails"),
])  # fmt: skip
def test_check_finds(tmp_path, old, new, line, message):
    assert not said("good.sbatch", tmp_path, GOOD)
    found = said("bad.sbatch", tmp_path, GOOD.replace(old, new))
    assert message in found[line], found


def test_check_warned_without_b(tmp_path):
    text = GOOD.replace("--nodes=2", "--nodes=2 --signal=USR1@60").replace("srun", "trap : USR1\nsrun")
    found = said("bad.sbatch", tmp_path, text)
    assert "--signal=B:USR1@60" in found[2]


@pytest.mark.parametrize("text", [
    GOOD.replace("train.py\n", "train.py || exit 1\necho done\n"),
    GOOD.replace("srun", "set -e\nsrun").replace("train.py\n", "train.py\necho done\n"),
    GOOD.replace("-m mpi4py train.py", "-m mpicoll train"),
    GOOD.replace("--nodes=2", "--nodes=2 --signal=B:USR1@60").replace("srun", "trap 'kill $!' USR1\nsrun").replace(
        "train.py", "train.py &\nwait $!"),
    GOOD.replace("srun -K --mpi=pmix", "srun -K \\\n    --mpi=pmix"),
])  # fmt: skip
def test_check_accepts(tmp_path, text):
    assert not said("good.sbatch", tmp_path, text)


def test_check_believes_a_program_with_the_hook(tmp_path):
    (tmp_path / "train.py").write_text("import mpicoll\nmpicoll.install_abort_hook()\n")
    assert not said("good.sbatch", tmp_path, GOOD.replace("-m mpi4py ", ""))


@pytest.mark.parametrize(("content", "message"), [(None, "cannot read"), (b"\xff\xfe\x00", "not text")])
def test_check_needs_a_script(tmp_path, content, message):
    path = tmp_path / "script"
    if content:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        mistakes(path)


def test_check_says_where(tmp_path, capsys):
    path = tmp_path / "bad.sbatch"
    path.write_text(GOOD.replace(" -K", ""))
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "check", str(path), str(JOBS / "bench.sbatch")])
    output = capsys.readouterr()
    assert ended.value.code == 1 and f"{path}:3: " in output.out and output.err == "1 mistake found\n"


def results(directory, name, nodes, batch, step_s):
    (directory / name).mkdir()
    where = {"nodes": nodes, "size": 2 * nodes}
    content = {"config": {"batch_size": batch}, "report": {"step_s": step_s}, "environment": where}
    (directory / name / "result.json").write_text(json.dumps(content))


def test_scaling(tmp_path):
    for nodes, strong, weak in ((1, 0.8, 0.8), (2, 0.5, 1.0), (10, 0.1, 1.0)):
        results(tmp_path, f"strong-{nodes}", nodes, 64, strong)
        results(tmp_path, f"weak-{nodes}", nodes, 64 * nodes, weak)
    (tmp_path / "weak-3").mkdir()  # its job failed
    rows, missing = gather(tmp_path)
    assert missing == ["weak-3"]
    assert [row["kind"] for row in rows] == ["strong"] * 3 + ["weak"] * 3
    assert [row["nodes"] for row in rows] == [1, 2, 10] * 2
    assert [round(row["efficiency"], 6) for row in rows] == [1, 0.8, 0.8, 1, 0.8, 0.8]
    assert [round(row["speedup"], 6) for row in rows] == [1, 1.6, 8, 1, 1.6, 8]
    assert "weak-3 has no result: see weak-3-JOB.out" in table(rows, missing)


def test_scaling_from_the_command_line(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results(tmp_path, "strong-2", 2, 64, 0.5)
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "scaling", str(tmp_path), "--plot", str(tmp_path / "plot.svg")])
    assert not ended.value.code and (tmp_path / "plot.svg").stat().st_size
    assert capsys.readouterr().out.splitlines()[1].split() == ["strong", "2", "4", "64", "500.0", "128", "1.00", "1.00"]


@pytest.mark.parametrize("directory", ["", "missing"])
def test_scaling_of_nothing(tmp_path, directory):
    with pytest.raises(ArgumentError, match="expected directories strong-N|cannot read"):
        gather(tmp_path / directory)


@pytest.mark.parametrize(("words", "message"), [
    (["--set", "STRATEGY=zero9"], "STRATEGY=zero9: expected parameter_server, allreduce, zero1, zero2, diloco (did you"),
    (["--set", "STRATGY=zero1"], "no setting STRATGY; it has LAUNCHER, VENV, STRATEGY"),
    (["--set", "CHECKPOINT=/tmp/run"], "CHECKPOINT=/tmp/run: each node has a directory of its own there"),
    (["--set", "ELASTIC=2", "--set", "LAUNCHER=srun"], "ELASTIC=2 with LAUNCHER=srun, which ends all ranks when one dies"),
    (["--ntask-per-node", "2"], "(did you mean --ntasks-per-node?)"),
])  # fmt: skip
def test_new_finds_mistakes_before_sbatch_does(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "new", "train", "--directory", str(tmp_path), *words])
    assert ended.value.code == 2 and message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("library", "refused"), [("Open MPI v5.0.11", False), ("MPICH 5.0.2", True)])
def test_new_and_check_know_which_mpi_goes_on_without_some_ranks(tmp_path, monkeypatch, library, refused):
    monkeypatch.chdir(tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {library}\n")
    python.chmod(0o755)
    if refused:
        with pytest.raises(ArgumentError, match="ELASTIC=2 with MPICH 5.0.2 and LAUNCHER=auto, which ends all ranks"):
            write("train", tmp_path, {}, {"ELASTIC": "2"})
    else:
        script = write("train", tmp_path, {}, {"ELASTIC": "2"})[0]
        assert "\n#SBATCH --no-kill " in script.read_text() and not mistakes(script)
        found = said(script.name, tmp_path, script.read_text().replace("LAUNCHER:=auto", "LAUNCHER:=srun"))
        assert [text.partition(":")[0] for text in found.values()] == [
            "ELASTIC=2 with Open MPI v5.0.11 and LAUNCHER=srun, which ends all ranks when one dies"]  # fmt: skip


def test_check_finds_options_that_a_command_does_not_have(tmp_path, capsys):
    write("train", tmp_path, {}, {"OPTIONS": "--stratgy zero1"})
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "check", str(tmp_path / "train_cpu.sbatch")])
    assert ended.value.code == 1
    assert ":28: mpicoll train has no option --stratgy (did you mean --strategy?)\n" in capsys.readouterr().out


def test_the_sweep_keeps_a_script_that_was_edited(tmp_path):
    write("train", tmp_path, {"nodes": "3"}, {})
    written = write("scaling", tmp_path, {}, {})
    assert [path.name for path in written] == ["scaling.sh"] and "--nodes=3" in (tmp_path / "train_cpu.sbatch").read_text()
    write("scaling", tmp_path, {}, {}, force=True)
    assert "--nodes=3" in (tmp_path / "train_cpu.sbatch").read_text()


def test_new_says_what_to_type_and_which_file_to_watch(tmp_path, capsys):
    for words, expected in ((["train_torch"], ["sbatch {}/train_torch.sbatch", "tail --follow=name --retry torch-JOB.out"]),
                            (["scaling"], ["bash {}/scaling.sh", "tail --follow=name --retry scaling/table.txt"])):
        with pytest.raises(SystemExit):
            main(["slurm", "new", *words, "--directory", str(tmp_path)])
        output = capsys.readouterr().out
        assert all(f"\n  {line.format(tmp_path)}" in output for line in expected) and "*" not in output


def test_words_of_settings_are_those_there_are():
    assert WORDS["STRATEGY"] == tuple(SHARDED) and WORDS["COLLECTIVE"] == tuple(COLLECTIVES)


def test_a_picture_that_cannot_be_drawn_is_left_out(tmp_path):
    """Of a job that has waited in the queue: `bench` and the sweep ask for no plot where there is no Matplotlib."""
    for found, expected in (("exit 0", "--plot x.svg"), ("exit 1", "")):
        (tmp_path / "python").write_text(f"#!/bin/sh\n{found}\n")
        (tmp_path / "python").chmod(0o755)
        definition = re.search(r"^plot\(\).*?^}", (JOBS / "launch.sh").read_text(), re.MULTILINE | re.DOTALL)[0]
        said = subprocess.run(["bash", "-c", f"{definition}; plot x.svg"], capture_output=True, text=True, check=True,
                              env={"PATH": f"{tmp_path}:/usr/bin:/bin"}).stdout  # fmt: skip
        assert said.strip() == expected
    assert '$(plot "$OUT/bench.svg")' in (JOBS / "bench.sbatch").read_text()
    assert '${PLOT:+--plot "$PLOT"}' in (JOBS / "scaling.sh").read_text()
