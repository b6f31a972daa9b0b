"""The working folder: locked while its owner lives, removed with it, swept up when it was killed."""

import errno
import os
import tempfile
import time

import pytest

from nccltune.bench import workdir
from nccltune.bench.workdir import Workdir, remove_abandoned
from nccltune.errors import NccltuneError


@pytest.fixture(autouse=True)
def own_tmp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandon(folder):
    """What a killed owner leaves: the folder without its lock."""
    os.close(folder._lock)
    (folder.path / "libnccl-0.so").write_bytes(b"x")
    return folder.path


def test_a_folder_is_removed_by_its_owner():
    folder = Workdir()
    (folder.path / "rank0.out").write_text("x")
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_only_folders_without_a_living_owner_are_swept_up(own_tmp):
    alive, dead, foreign = Workdir(), abandon(Workdir()), own_tmp / "nccltune-notes"
    foreign.mkdir()
    assert remove_abandoned() == [], "a folder that is new may not have its lock yet"
    assert remove_abandoned(settled_s=0) == [dead]
    assert sorted(own_tmp.iterdir()) == sorted([alive.path, foreign])
    alive.remove()


def test_the_next_scan_sweeps_up():
    dead = abandon(Workdir())
    os.utime(dead / ".lock", (time.time() - 3600,) * 2)
    Workdir().remove()
    assert not dead.exists()


def test_no_room_for_it_is_one_clear_error(monkeypatch, own_tmp):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workdir.tempfile, "mkdtemp", full)
    with pytest.raises(NccltuneError) as caught:
        Workdir()
    assert caught.value.lines() == [
        f"cannot write {own_tmp}",
        "why: No space left on device",
        "do:  free some space there, or set TMPDIR to another folder",
    ]
