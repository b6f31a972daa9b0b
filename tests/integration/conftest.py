"""Every test here has a temporary folder of its own and must leave neither a process nor a working folder behind."""

import tempfile

import pytest
from real_scans import wait_for, workers


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Give the ranks their own TMPDIR; afterwards no rank may run and no working folder may exist."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("NCCLTUNE_FAULT", raising=False)
    yield folder
    wait_for(lambda: not workers(folder), "the end of the ranks", seconds=5)
    assert list(folder.glob("nccltune-*")) == []
