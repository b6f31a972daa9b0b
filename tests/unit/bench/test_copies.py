"""Copies of libnccl: a file of its own for each."""

import pytest

from nccltune.bench.copies import Copies
from nccltune.bench.group import RankFailure


@pytest.fixture
def libnccl(tmp_path):
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"nccl")
    return str(path)


def env(number):
    return {"NCCL_BUFFSIZE": str(number)}


def test_a_copy_that_is_not_used_gives_its_file_and_one_in_use_does_not(libnccl, tmp_path):
    unloaded = []
    copies = Copies(libnccl, 2, unloaded.append)
    first, second = copies.take(env(1), tmp_path), copies.take(env(2), tmp_path)
    assert copies.take(env(1), tmp_path) is first
    third = copies.take(env(3), tmp_path)
    assert (unloaded, third.path) == ([second.path], second.path)
    first.num_open = third.num_open = 1
    fourth = copies.take(env(4), tmp_path)
    assert fourth.path not in (first.path, third.path)
    assert len({library.log for library in (first, second, third, fourth)}) == 4


def test_a_copy_that_could_not_be_unloaded_keeps_its_file(libnccl, tmp_path):
    def unload(path):
        raise RankFailure("other", "dlclose", 0, group_alive=True)

    copies = Copies(libnccl, 2, unload)
    loaded = [copies.take(env(1), tmp_path), copies.take(env(2), tmp_path)]
    with pytest.raises(RankFailure):
        copies.take(env(3), tmp_path)
    assert copies.take(env(1), tmp_path) is loaded[0]
    for library in loaded:
        library.num_open = 1
    assert copies.take(env(3), tmp_path).path not in [library.path for library in loaded]


def test_files_serve_again_after_a_restart(libnccl, tmp_path):
    copies = Copies(libnccl, 4, lambda path: None)
    before = [copies.take(env(n), tmp_path).path for n in range(3)]
    copies.forget()
    assert not copies.only_others(env(1))
    assert copies.take(env(9), tmp_path).path == before[0]
    assert copies.only_others(env(1))
