"""A program of somebody else: however its run is left, it does not outlive it."""

import contextlib
import os
import signal
import sys

import psutil
import pytest

from nccltune.bench import child
from nccltune.launch.family import wait_for

SLEEPS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_further_interrupt_while_it_is_ended_leaves_nothing_behind(tmp_path, monkeypatch):
    """The second Ctrl-C comes inside the two seconds that a program has to end politely."""

    def interrupted(family, polite_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(child.Family, "end", interrupted)
    told = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        child.run_child([sys.executable, "-c", SLEEPS, str(told)], dict(os.environ), 1.5)
    pid = int(told.read_text())
    try:
        assert wait_for(lambda: is_gone(pid), 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_program_past_its_limit_is_ended(tmp_path):
    told = tmp_path / "pid"
    result = child.run_child([sys.executable, "-c", SLEEPS, str(told)], dict(os.environ), 1.0)
    assert (result.is_timed_out, result.returncode) == (True, -15)
    assert is_gone(int(told.read_text()))
