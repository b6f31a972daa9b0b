"""Closed and full standard streams, and readers that go away, by real processes of the real command."""

import shlex
import subprocess
import sys

import pytest

TOOL = f"{shlex.quote(sys.executable)} -m nccltune"


def shell(line):
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["models list", "models list --json", "emit --setting seed"])
def test_an_answer_that_cannot_be_written_is_an_error(command):
    for target in (">&-", ">/dev/full"):
        code, _, err = shell(f"{TOOL} {command} {target}")
        assert code == 1, target
        assert err.count("Error: the output cannot be written") == 1
        assert "is a bug" not in err
        assert "Traceback" not in err


@pytest.mark.parametrize("target", ["2>&-", "2>/dev/full"])
def test_a_warning_that_cannot_be_written_is_none(target):
    code, out, _ = shell(f"{TOOL} emit --setting seed {target}")
    assert code == 0
    assert "export NCCL_PROTO" in out
    assert shell(f"{TOOL} predict --draft-tokens 0 {target}")[0] == 2


@pytest.mark.parametrize("command", ["models list", "models list --json", "predict --draft-tokens 1-8"])
def test_a_reader_that_goes_away_ends_the_command_in_peace(command):
    code, _, err = shell(f"set -o pipefail; {TOOL} {command} | head -c 1")
    assert code == 0
    assert "Error" not in err
