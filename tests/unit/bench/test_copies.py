"""Copies of libnccl: a file of its own for each, and what a copy says once holds for its later communicators."""

import pytest

from nccltune.bench.copies import Copies, Library
from nccltune.bench.group import RankFailure

MAX_ECHO = "host:1:1 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 4.\n"
CHANNELS = "host:1:1 [0] NCCL INFO {} coll channels, 0 collnet channels\n"


@pytest.fixture
def libnccl(tmp_path):
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"nccl")
    return str(path)


def env(number):
    return {"NCCL_BUFFSIZE": str(number)}


def test_a_clamp_is_found_at_every_communicator_of_a_copy():
    """NCCL echoes a variable of the library at the copy's first communicator only."""
    library = Library("", "")
    assert library.read(MAX_ECHO + CHANNELS.format(4)).rejected == []
    [clamped] = library.read(CHANNELS.format(8)).rejected
    assert (clamped.variable, clamped.requested, clamped.in_force) == ("NCCL_MAX_NCHANNELS", "4", "8")
    assert library.read(CHANNELS.format(4)).rejected == [], "a clamp is each communicator's own"
    assert library.echoed == {"NCCL_MAX_NCHANNELS": "4"}


def test_a_refusal_in_words_is_said_once_and_holds_for_the_copy():
    library = Library("", "")
    words = "host:1:1 [0] NCCL INFO {} set by environment to {}.\nhost:1:1 [0] NCCL WARN Invalid value {} for {}, using default 2.\n"
    first = library.read(words.format("NCCL_CUMEM_ENABLE", "x", "x", "NCCL_CUMEM_ENABLE"))
    assert [r.variable for r in first.rejected] == ["NCCL_CUMEM_ENABLE"]
    assert library.read("").rejected == first.rejected
    # What is read at every communicator is refused at that one only.
    library.read(words.format("NCCL_PROTO", "x", "x", "NCCL_PROTO"))
    assert [r.variable for r in library.read("").rejected] == ["NCCL_CUMEM_ENABLE"]


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
