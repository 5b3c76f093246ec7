"""Which GPU of its host a rank uses."""

import numpy
import pytest

import mpicoll
from mpicoll.support.gpus import device_module
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = pytest.mark.mpi


def raising(*_):
    raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


def test_ranks_take_the_devices_of_their_host_in_turn(xp, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert mpicoll.use_local_device() == mpicoll.use_local_device(WORLD) == RANK % 2
    assert xp.cuda.Device().id == RANK % 2
    assert device_module("cuda", WORLD) is xp and device_module("cpu", WORLD) is numpy


@pytest.mark.parametrize("seen", [lambda: str(RANK), lambda: "0,1" if RANK % 2 else "1,0", lambda: f"{RANK},{RANK + SIZE}"])
def test_a_launcher_that_shows_each_rank_its_own_has_chosen(xp, monkeypatch, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen())
    assert mpicoll.use_local_device() == (RANK // 2 % 2 if seen() in ("0,1", "1,0") else 0)


@pytest.mark.parametrize("name", ["getDeviceCount", "malloc"])
def test_a_rank_without_one_is_an_error_on_all(xp, monkeypatch, name):
    if RANK == SIZE - 1:
        broken = (xp.cuda.runtime, "getDeviceCount") if name == "getDeviceCount" else (xp, "empty")
        monkeypatch.setattr(*broken, raising)
    with pytest.raises(mpicoll.LaunchError, match="device cuda: .*cudaErrorNoDevice"):
        mpicoll.use_local_device()
