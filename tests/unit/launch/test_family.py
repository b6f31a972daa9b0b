"""Ending what was started here: real processes that ignore signals, leave the group, lose their parent or their starter."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from nccltune.launch.family import Family, wait_for
from nccltune.launch.guard import Guard

# Prints the ids of itself and of a child, then sleeps. The first word says how the child lives, the second how both take SIGTERM.
PROGRAM = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session="left" in sys.argv)
print(os.getpid(), child.pid, flush=True)
if "dies" in sys.argv:
    os._exit(3)
time.sleep(600)
"""


def start(*words, **popen):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True, start_new_session=True, **popen)  # fmt: skip
    return process, [int(word) for word in process.stdout.readline().split()]


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("words", "is_forced"), [((), False), (("left",), False), (("deaf",), True), (("deaf", "left"), True)]
)
def test_leader_and_child_are_ended(words, is_forced):
    process, pids = start(*words)
    with process:
        assert Family(process.pid).end(polite_s=0.5) == (0, is_forced)
        assert all(map(is_gone, pids))


def test_a_child_outlives_a_leader_that_crashed_and_was_reaped():
    process, (_, child) = start("deaf", "dies")
    with process:
        family = Family(process.pid)
        process.wait()
        assert not is_gone(child)
        assert family.end(polite_s=0.2) == (0, True)
        assert is_gone(child)


def test_nothing_is_hit_when_all_are_gone():
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    family = Family(process.pid)
    process.wait()
    assert family.members() == []
    assert family.end(polite_s=0.2) == (0, False)


STARTER = """
import os, subprocess, sys, time
from nccltune.launch.guard import Guard
guard = Guard()
process = subprocess.Popen([sys.executable, "-c", sys.argv[1], "deaf", "left"], start_new_session=True)
guard.watch(process.pid)
time.sleep(600)
"""


def test_the_guard_ends_a_deaf_family_when_its_starter_is_killed():
    with subprocess.Popen([sys.executable, "-c", STARTER, PROGRAM], stdout=subprocess.PIPE, text=True) as starter:
        pids = [int(word) for word in starter.stdout.readline().split()]
        time.sleep(0.2)
        starter.kill()
        assert wait_for(lambda: all(map(is_gone, pids)), 20)


def test_a_dismissed_guard_ends_nothing():
    process, pids = start()
    with process:
        with Guard() as guard:
            guard.watch(process.pid)
        time.sleep(0.3)
        assert not any(map(is_gone, pids))
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("is_ended", [False, True])
def test_an_exception_leaves_what_was_not_ended_to_the_guard(is_ended):
    process, pids = start("left")
    guard = Guard()
    try:
        guard.watch(process.pid)
        if is_ended:
            guard.dismiss()
        guard.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert wait_for(lambda: all(map(is_gone, pids)), 1 if is_ended else 20) is not is_ended
    finally:
        Family(process.pid).end(0.5)
        process.communicate()


def test_a_guard_that_was_killed_does_not_stop_the_work():
    guard = Guard()
    guard._process.kill()
    guard._process.wait()
    guard.watch(1)
    guard.dismiss()
    guard.dismiss()
