"""What is known of GPUs and of MPI's awareness of them, and what is said where something is missing."""

import json
from itertools import combinations

import numpy as np
import pytest

from mpicoll import BufferError, LaunchError, buffers
from mpicoll.cli import gpus as shown
from mpicoll.gpu import awareness, proofs
from mpicoll.gpu.proofs import Result
from mpicoll.support import child_job, gpus
from tests.support import fakes
from tests.support.fakes import fakecupy
from tests.support.fakes.arrays import Foreign
from tests.support.fakes.fakecupy import streams

PASSED, FAILED = Result(True, "all arrived", "at noon"), Result(False, "it crashed", "at noon")
TOO_OLD = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"


@pytest.fixture
def xp():
    with fakes.cupy_is(fakecupy):
        yield fakecupy


@pytest.fixture(autouse=True)
def forget(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MPICOLL_GPU", raising=False)
    awareness.last_trial.cache_clear()
    yield
    awareness.last_trial.cache_clear()


@pytest.mark.parametrize("rest", ["", ", numpy._core._multiarray_umath,.", "Extension modules: mpi4py.MPI"])
def test_what_a_crash_says_whatever_other_ranks_write_on_its_line(rest):
    line = "Fatal Python error: Segmentation fault"
    assert awareness._summary(child_job.Ended(139, f"{line}\n\n{line}{rest}\n")) == "it crashed: Segmentation fault"


@pytest.mark.parametrize("first", [*combinations(range(6), 3)])
def test_what_a_crash_says_in_whatever_order_two_ranks_write_its_parts(first):
    parts = ["Fatal Python error: ", "Segmentation fault", "\n\n"]
    ranks = [iter(parts), iter(parts)]
    output = "".join(next(ranks[turn not in first]) for turn in range(6))
    assert awareness._summary(child_job.Ended(139, output)) == "it crashed: Segmentation fault"


def raising(words):
    def count(*_):
        raise RuntimeError(words)

    return count


# What a rank's environment was before its launcher.

LAUNCHERS = {
    "PMI_RANK": "0", "PMI_FD": "9", "PMI2_RANK": "0", "HYDI_CONTROL_FD": "7", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1",
    "PMIX_RANK": "0", "PMIX_SERVER_URI41": "x", "PRTE_LAUNCHED": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_num_procs": "2",
    "OMPI_MCA_initial_wdir": "/", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "PBS_NODEFILE": "x", "HYDRA_HOST_FILE": "x",
    "PRTE_MCA_prte_default_hostfile": "x", "FLUX_URI": "x",
}  # fmt: skip
USERS = {"PATH": "/bin", "LD_PRELOAD": "libucp.so", "UCX_TLS": "cuda", "OMPI_MCA_pml": "ucx", "OPAL_PREFIX": "/opt/x",
         "PMIX_MCA_gds": "hash", "MPIR_CVAR_CH4_NETMOD": "ucx", "CUDA_VISIBLE_DEVICES": "1",
         "PMIX_PREFIX": "/opt/x"}  # fmt: skip


def test_a_child_does_not_learn_of_the_job_that_its_parent_is_in():
    left = child_job.environment({**LAUNCHERS, **USERS})
    assert not LAUNCHERS.keys() & left.keys()
    assert left.items() >= USERS.items()


def test_no_launcher(monkeypatch, xp):
    monkeypatch.setattr(child_job, "own_launcher", lambda: None)
    result = awareness.make_trial()
    assert not result.passed and "no mpiexec beside the MPI library" in result.said
    assert awareness.last_trial() is None, "nothing was learned about MPI"


def test_a_launcher_that_cannot_be_started(tmp_path):
    missing = tmp_path / "mpiexec"
    assert child_job.run(str(missing), 2, "any", 1) == (127, f"{missing}: No such file or directory")


# Trials that are kept.


def test_a_result_is_kept_for_its_circumstances_alone(monkeypatch, xp):
    of = proofs.circumstances()
    assert proofs.read(of) is None
    assert proofs.keep(of, PASSED) == ""
    assert proofs.read(of) == PASSED
    monkeypatch.setenv("UCX_TLS", "tcp")  # over another transport
    assert proofs.read(proofs.circumstances()) is None
    monkeypatch.delenv("UCX_TLS")
    monkeypatch.setattr(fakecupy, "__version__", "15.0.0")
    assert proofs.read(proofs.circumstances()) is None
    monkeypatch.undo()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"3", b'{"passed": true}', "yes", 1, None])
def test_a_file_that_is_none_of_ours_proves_nothing(xp, content):
    of = proofs.circumstances()
    proofs.keep(of, PASSED)
    if not isinstance(content, bytes):
        content = json.dumps({"schema": 1, "of": of, "passed": content, "said": "", "when": ""}).encode()
    proofs.place(of).write_bytes(content)
    assert proofs.read(of) is None


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, xp):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot make" in proofs.keep(proofs.circumstances(), PASSED)
    proofs.place({}).parent.parent.unlink()
    proofs.place({}).mkdir(parents=True)
    assert "cannot write" in proofs.keep({}, PASSED)


def test_a_relative_cache_folder_is_none(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(proofs.place({}).parent) == "/home/ada/.cache/mpicoll"


# What follows from them.


@pytest.mark.parametrize(("known", "trial", "mode", "why"), [
    (True, None, "direct", "asked says that MPI takes device pointers"),
    (True, PASSED, "direct", "asked says"),
    (True, FAILED, "staged", "the trial of at noon failed: it crashed"),
    (False, None, "staged", "no trial has shown it: mpicoll info --gpu makes one"),
    (False, PASSED, "direct", "the trial of at noon passed: all arrived"),
    (None, PASSED, "direct", "the trial of at noon passed: all arrived"),
    (None, FAILED, "staged", "it crashed"),
])  # fmt: skip
def test_the_mode(monkeypatch, xp, known, trial, mode, why):
    monkeypatch.setattr(awareness, "cuda_awareness", lambda: (known, "asked"))
    if trial:
        proofs.keep(proofs.circumstances(), trial)
    found = awareness.gpu_mode_and_why()
    assert found[0] == mode and why in found[1]
    for word in ("staged", "direct"):
        monkeypatch.setenv("MPICOLL_GPU", word)
        assert awareness.gpu_mode_and_why() == (word, f"MPICOLL_GPU={word}")


# What is missing.


@pytest.mark.parametrize(("driver", "count", "text"), [
    (0, raising(TOO_OLD), r"no CUDA driver on .*cudaErrorInsufficientDriver"),
    (12020, raising(TOO_OLD), r"the driver on \S+ is for CUDA 12\.2, too old for this CuPy .*mpicoll\[cuda12\]"),
    (13000, raising("cudaErrorNoDevice: no device"), r"no CUDA device on .*CUDA_VISIBLE_DEVICES is ''"),
    (13000, lambda: 0, r"no CUDA device on .*counts 0"),
])  # fmt: skip
def test_what_is_missing_is_named(monkeypatch, xp, driver, count, text):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(fakecupy.cuda.runtime, "driverGetVersion", lambda: driver)
    monkeypatch.setattr(fakecupy.cuda.runtime, "getDeviceCount", count)
    with pytest.raises(LaunchError, match=text):
        gpus.working_cupy()
    facts = gpus.facts()
    assert facts["problem"] and not facts["devices"] and facts["cupy"] == fakecupy.__version__
    assert awareness.make_trial().said == facts["problem"]


def test_without_cupy():
    with fakes.cupy_is(None):
        assert "needs CuPy" in gpus.facts()["problem"]
        assert "needs CuPy" in awareness.make_trial().said
        assert awareness.gpu_mode() in ("staged", "direct")


def test_a_device_array_without_a_driver(monkeypatch, xp):
    array = xp.array(np.ones(3))
    monkeypatch.setattr(fakecupy.cuda.runtime, "pointerGetAttributes", raising(TOO_OLD))
    with pytest.raises(BufferError, match="cudaErrorInsufficientDriver.*mpicoll info --gpu"):
        buffers.operand(Foreign(array))


# What is told.


def test_devices_go_by_the_names_that_nvidia_smi_gives_them(xp):
    first, second = gpus.facts()["devices"]
    assert first == {"name": "a stand-in", "uuid": "GPU-01010101-0101-0101-0101-010101010101", "bytes": 8 << 30}
    assert second["uuid"].startswith("GPU-02020202-")


@pytest.mark.parametrize("line", [
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)",
])  # fmt: skip
def test_the_drivers_version(monkeypatch, tmp_path, line):
    monkeypatch.setattr(gpus, "_KERNEL_MODULE", tmp_path / "version")
    assert gpus.driver_version() is None
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert gpus.driver_version() == "550.54.15"


def rank(host, uses, devices, **changes):
    alike = {name: None for name in ("problem", "driver", "cuda_driver", "cuda_runtime", "cupy", "nccl", "trial")}
    seen = [{"name": "H", "uuid": uuid, "bytes": 80 << 30} for uuid in devices]
    return {**alike, "host": host, "uses": uses, "devices": seen, "cuda_aware": False, "cuda_aware_by": "asked",
            "gpu_mode": "staged", "gpu_mode_because": "so", **changes}  # fmt: skip


def test_ranks_that_see_different_devices_of_a_host():
    hosts = shown.merge([rank("a", "x", ["x"]), rank("a", "y", ["y"]), rank("b", "z", ["z", "w"]), rank("b", "w", ["z", "w"]),
                         rank("b", "z", ["z", "w"], cupy="14.0")])  # fmt: skip
    assert [[device["ranks"] for device in host["devices"]] for host in hosts] == [[[0], [1]], [[2, 4], [3]]]
    assert list(shown.warnings(hosts)) == ["b has 3 ranks on 2 GPUs: they share, and wait for each other"]
    text = "\n".join(shown.describe(hosts))
    assert "CUDA-aware      no (asked)\ndevice memory   staged: so\n" in text
    assert "  b: H, 80.0 GiB, z, for ranks 2, 4\n" in text


def test_hosts_that_differ_are_told_apart():
    hosts = shown.merge([rank("a", None, [], problem="no CuPy"), rank("b", "x", ["x"], gpu_mode="direct", driver="550")])
    lines = list(shown.describe(hosts))
    assert "device memory   a: staged: so" in lines and "device memory   b: direct: so" in lines
    long = list(shown.describe([hosts[0] | {"gpu_mode_because": "no trial " * 9}]))[1].splitlines()
    assert long == [f"device memory   staged:{' no trial' * 6} no", f"{' ' * 16}trial no trial no trial"]
    assert "GPUs            a: none: no CuPy" in lines and "GPU software    b: driver 550" in lines


def test_a_library_that_promises_too_much():
    hosts = shown.merge([rank("a", "x", ["x"], cuda_aware=True, trial=FAILED._asdict())])
    assert list(shown.warnings(hosts)) == ["a: MPI says that it takes device pointers, but the trial failed"]
    assert "trial           failed: it crashed" in shown.describe(hosts)


@pytest.mark.parametrize("version", [13, 14])
def test_a_stream_of_another_library(monkeypatch, xp, version):
    mine = xp.cuda.Stream()
    if version == 13:  # it has no other way
        monkeypatch.setattr(xp.cuda, "ExternalStream", streams.of_pointer, raising=False)
        monkeypatch.delattr(xp.cuda.Stream, "from_external")
    assert gpus.stream_at(mine.ptr) is mine
