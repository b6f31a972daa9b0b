"""Accept lengths out of engines' own text."""

from pathlib import Path

import pytest

from nccltune.errors import InputError
from nccltune.parse.accept_log import accept_log, read_accept_log
from nccltune.parse.accept_rate import num_drafts

CASES = Path(__file__).parents[2] / "data" / "sglang"


@pytest.mark.parametrize(
    ("file", "mean"),
    [
        ("01-v053-accept-len-and-rate.txt", (2.20 + 1.93 + 1.82 + 2.10 + 1.80 + 1.60) / 6),
        ("08-accept-rate-above-one.txt", 3.45),
        ("09-bench-serving-accept-length.txt", 2.54),
        ("12-bench-jsonl-appended-null.txt", (2.87 + 2.61) / 2),
        ("13-prometheus-draft-and-unified.txt", 2.9),
        # vLLM: 1 + 0.982 + 0.946 + 0.911 + 0.857 + 0.679 = 5.375, printed as 5.38
        ("15-vllm-v1-specdecoding.txt", 5.375),
        ("24-accept-rate-two-definitions.txt", (2.71 + 2.76) / 2),
    ],
)
def test_known_forms(file, mean):
    assert read_accept_log(CASES / file).mean == pytest.approx(mean)


def test_positions_of_vllm_are_survival():
    found = read_accept_log(CASES / "15-vllm-v1-specdecoding.txt")
    assert found.survival == pytest.approx([0.982, 0.946, 0.911, 0.857, 0.679])
    assert found.num_drafts == 5


@pytest.mark.parametrize(
    "file",
    ["03-v041-no-spec-retraction.txt", "04-comma-form-cuda-graph-off-then-on.txt", "20-custom-allreduce-disabled.txt"],
)
def test_a_log_without_speculation_gives_no_accept_length(file):
    with pytest.raises(InputError, match="no accept length"):
        read_accept_log(CASES / file)


def test_number_of_drafts_from_the_server_arguments():
    line = "server_args=ServerArgs(speculative_num_steps=2, speculative_num_draft_tokens=3)\n"
    text = line + (CASES / "08-accept-rate-above-one.txt").read_text().replace("3.45", "2.45")
    assert accept_log(text, "log").num_drafts == 2


def test_empty_and_missing_files(tmp_path):
    with pytest.raises(InputError):
        accept_log("", "empty")
    with pytest.raises(InputError, match="does not exist"):
        read_accept_log(tmp_path / "none.log")


@pytest.mark.parametrize(
    ("file", "num_drafts"),
    [
        ("01-v053-accept-len-and-rate.txt", 3),  # 2.20 / 0.55 = 4 verified tokens
        ("13-prometheus-draft-and-unified.txt", 3),  # 1.9 / 0.63 = 3 drafts
        ("24-accept-rate-two-definitions.txt", 3),  # 1.71 / 0.57 = 3 drafts and 2.76 / 0.69 = 4 verified tokens
        ("08-accept-rate-above-one.txt", None),
        ("09-bench-serving-accept-length.txt", None),
    ],
)
def test_number_of_drafts_from_lengths_and_rates(file, num_drafts):
    assert read_accept_log(CASES / file).num_drafts == num_drafts


def test_a_server_that_changes_its_drafts_has_no_number_of_them():
    assert num_drafts([(2.2, 0.55), (2.2, 0.44)]) is None  # 4, then 5 verified tokens
    assert num_drafts([(2.2, 0.55), (None, 0.3), (1.0, 0.0)]) == 3
    assert num_drafts([]) is None


def test_arguments_of_a_tree_are_not_overruled_by_rates():
    text = "speculative_num_steps=3, speculative_eagle_topk=4, speculative_num_draft_tokens=16\n"
    text += (CASES / "01-v053-accept-len-and-rate.txt").read_text()
    assert accept_log(text, "log").num_drafts is None
