"""What a held batch shows, from marks written by hand; prompts; what a server says of itself."""

import json
from pathlib import Path

import pytest

from nccltune.errors import InputError
from nccltune.schemas.setting import BASE
from nccltune.validation import state
from nccltune.validation.client import Mark, ServerError, Stream
from nccltune.validation.load import measure
from nccltune.validation.measure import ArmPlan, LoadOptions, _samples, arm_prompts, measure_arm
from nccltune.validation.prompts import make_prompts, read_prompts, take

REAL_LOG = Path(__file__).parent.parent.parent / "data" / "sglang" / "h200-x2-eagle3-d3.txt"


def stream(start, step, tokens, verifies=None, prompt=100, late_counter=False):
    """One mark a step: tokens[i] so far; verifies[i] so far, or only in the end."""
    counts = verifies or [0] * len(tokens)
    shown = [0] * (len(counts) - 1) + counts[-1:] if late_counter else counts
    marks = [Mark(start + i * step, t, v) for i, (t, v) in enumerate(zip(tokens, shown, strict=True))]
    meta = {
        "prompt_tokens": prompt,
        "completion_tokens": tokens[-1],
        **({"spec_verify_ct": counts[-1]} if verifies else {}),
    }
    return Stream(start - 0.1, marks, meta)


def test_only_the_window_in_which_all_decode_is_measured():
    # one decodes from 0 to 2 s at 10 ms, the other from 1 to 3 s at 20 ms: between 1 and 2 s both do
    one = stream(0.0, 0.010, list(range(1, 202)))
    other = stream(1.0, 0.020, list(range(1, 102)))
    found = measure([one, other], drafted=False)
    assert found.window_s == pytest.approx(1.0)
    assert found.share == pytest.approx(1 / 3)
    assert found.step_ms == pytest.approx(15.0)  # median of 10 and 20
    assert found.tokens_per_s == pytest.approx(150.0)
    assert found.context_tokens == pytest.approx(100 + (201 + 101) / 4)


def test_plain_decode_counts_tokens_so_merged_chunks_do_not_matter():
    assert measure([stream(0.0, 0.020, [1, 3, 5, 7])], drafted=False).step_ms == pytest.approx(10)


@pytest.mark.parametrize("late_counter", [False, True])
def test_cycles_are_counted_by_verifies(late_counter):
    found = measure([stream(0.0, 0.008, [1, 3, 5, 7, 9], [0, 1, 2, 3, 4], late_counter=late_counter)], drafted=True)
    assert found.step_ms == pytest.approx(8)
    assert (found.num_tokens, found.num_verifies) == (9, 4)


def test_a_counter_that_comes_last_is_not_taken_for_the_window():
    # together only in the last half of the first: its 4 verifies are not those of the window
    one = stream(0.0, 0.010, [1, 3, 5, 7, 9], [0, 1, 2, 3, 4], late_counter=True)
    other = stream(0.020, 0.010, [1, 3, 5, 7, 9], [0, 1, 2, 3, 4], late_counter=True)
    assert measure([one, other], drafted=True).step_ms == pytest.approx(10)


def test_merged_chunks_are_timed_over_the_whole_stream_or_not_at_all():
    merged = stream(0.0, 0.016, [1, 5, 9], [0, 2, 4], late_counter=True)
    assert measure([merged], drafted=True).step_ms == pytest.approx(8)
    with pytest.raises(ServerError, match="never decoded together"):
        measure([merged, stream(0.010, 0.016, [1, 5, 9], [0, 2, 4], late_counter=True)], drafted=True)


def test_requests_that_never_overlap_are_no_batch():
    with pytest.raises(ServerError, match="never decoded together"):
        measure([stream(0.0, 0.01, [1, 2, 3]), stream(5.0, 0.01, [1, 2, 3])], drafted=False)


def test_few_step_times_of_the_server_are_not_enough():
    samples, timing = _samples([4.54, 4.52, 9.55], [4.59])
    assert samples == [4.54, 4.52, 9.55]  # a slow step is a step
    assert timing.startswith("server")
    samples, timing = _samples([4.54, 4.52], [4.59])
    assert samples == [4.59]
    assert timing.startswith("client")


def test_the_first_interval_of_every_load_is_left_out(monkeypatch):
    # as recorded on 2x H200: it holds the prefill, and no other does
    loads = [[22.56, 4.53, 4.53], [22.95, 4.54, 4.52, 4.55], [22.55, 4.53, 9.54]]
    times = [[227.78]]
    for one in loads:
        times.append(times[-1] + one)
    looks = iter([{}, *times, times[-1]])

    class Server:
        def server_info(self):
            found = next(looks)
            state = {"step_time_dict": {"1": [t / 1e3 for t in found]}} if found else {}
            return {"version": "0.5.14", "internal_states": [state]}

    monkeypatch.setattr("nccltune.validation.load.hold", lambda *_: [stream(0.0, 0.0046, list(range(1, 65)))])
    plan = ArmPlan(BASE, draft_tokens=1, batch_size=1)
    record = measure_arm(Server(), plan, LoadOptions(output_tokens=64, repeats=3), None, Path("unused"))
    assert record.error is None
    assert record.samples_ms == pytest.approx([4.53, 4.53, 4.54, 4.52, 4.55, 4.53, 9.54])


def test_new_step_times_are_those_of_this_arm():
    before = {"1": [0.2, 0.005], "4": [0.1]}
    after = {"1": [0.2, 0.005, 0.006, 0.007], "4": [0.1]}
    assert state.new_step_times(before, after, 1) == [0.006, 0.007]
    assert state.new_step_times({}, after, 4) == [0.1]
    assert state.new_step_times(before, after, 16) == []


@pytest.mark.parametrize(
    "info", [{}, {"internal_states": None}, {"internal_states": []}, {"internal_states": [{"step_time_dict": [1]}]}]
)
def test_a_server_without_step_times_has_none(info):
    assert state.step_times(info) == {}


def test_bad_step_times_are_passed_over():
    info = {"internal_states": [{"step_time_dict": {"1": [0.005, "x", None, -1, float("nan"), True]}}]}
    assert state.step_times(info) == {"1": [0.005]}


@pytest.mark.parametrize(
    ("changes", "links", "path"),
    [
        ({"disable_custom_all_reduce": True, "flashinfer_allreduce_fusion_backend": None}, "nvlink", "nccl"),
        ({"flashinfer_allreduce_fusion_backend": None}, "nvlink", "custom"),
        ({"flashinfer_allreduce_fusion_backend": "trtllm"}, "nvlink", "flashinfer-fusion"),
        ({"flashinfer_allreduce_fusion_backend": None, "tp_size": 8}, "pcie", "nccl"),
    ],
)
def test_which_all_reduce_a_server_uses(changes, links, path):
    info = {"tp_size": 2, "nnodes": 1, **changes}
    assert state.all_reduce(info, "", links, "Qwen3MoeForCausalLM")["path"] == path


def test_the_log_overrules_and_is_kept_as_evidence():
    line = "[2026-11-29 22:54:15 TP1] Custom allreduce is disabled because your platform lacks GPU P2P capability."
    found = state.all_reduce(
        {"tp_size": 2, "flashinfer_allreduce_fusion_backend": None}, f"noise\n{line}\n", "nvlink", None
    )
    assert (found["path"], found["log"]) == ("nccl", [line])


def test_made_prompts_differ_and_repeat_with_their_seed():
    ids = make_prompts(3, 50, as_ids=True, seed=1)
    assert [len(p["input_ids"]) for p in ids] == [50, 50, 50]
    assert ids == make_prompts(3, 50, as_ids=True, seed=1)
    assert len({tuple(p["input_ids"]) for p in ids + make_prompts(3, 50, as_ids=True, seed=2)}) == 6
    (text,) = make_prompts(1, 400, as_ids=False, seed=1)
    assert 280 < len(text["text"].split()) < 360  # 0.75 words a token


def test_prompts_of_a_server_without_a_tokenizer_are_ids():
    plan, options = ArmPlan(BASE, 1, 2), LoadOptions(context_tokens=200, output_tokens=100)
    assert options.input_tokens == 150
    assert all("input_ids" in p for p in arm_prompts({"skip_tokenizer_init": True}, plan, options, 0))
    assert all("text" in p for p in arm_prompts({}, plan, options, 0))


def test_own_prompts_are_read_in_turn(tmp_path):
    path = tmp_path / "p"
    path.write_text("hello\n\n" + json.dumps({"prompt": "there"}) + "\n" + json.dumps({"input_ids": [1, 2]}) + "\n")
    found = read_prompts(path)
    assert found == [{"text": "hello"}, {"text": "there"}, {"input_ids": [1, 2]}]
    assert take(found, 4, 2) == [{"input_ids": [1, 2]}, {"text": "hello"}, {"text": "there"}, {"input_ids": [1, 2]}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no prompts"),
        ("{bad\n", "is not JSON"),
        ('{"a": 1}\n', "has no prompt"),
        ('{"input_ids": [-1]}\n', "has no prompt"),
    ],
)
def test_bad_prompts_name_the_line(tmp_path, text, says):
    path = tmp_path / "p"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_prompts(path)
