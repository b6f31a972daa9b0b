"""A setting from what people type: what is refused, and how."""

import pytest

from nccltune.cli import _errors, cli
from nccltune.errors import InputError
from nccltune.schemas.setting import Setting, parse_setting

BAD = ["NCCL_X=a\nb", "NCCL_X=a\rb", "NCCL_X=a\x1b[0m", "NCCL_X=a\udcff", "NCCL_X\n=a"]


@pytest.mark.parametrize("text", BAD)
def test_a_value_of_more_than_one_printable_line_is_refused(text):
    with pytest.raises(InputError):
        parse_setting(text)
    name, _, value = text.partition("=")
    with pytest.raises(InputError):
        Setting.make({name: value})


def test_an_empty_value_is_refused():
    with pytest.raises(InputError, match="not a setting"):
        Setting.make({"NCCL_PROTO": ""}, "env")


@pytest.mark.parametrize(
    "argv",
    [
        ["predict", "--draft-tokens", "3", "--setting"],
        ["emit", "--setting"],
        ["scan", "--dry-run", "--backend", "gloo", "--setting"],
        ["scan", "--dry-run", "--backend", "gloo", "--set"],
        ["scan", "--dry-run", "--backend", "gloo", "--base-set"],
    ],
)
@pytest.mark.parametrize("text", BAD)
def test_every_command_calls_it_wrong_input(argv, text, capsys):
    assert _errors.run(cli, [*argv, text]) == 2
    assert "bug" not in capsys.readouterr().err
