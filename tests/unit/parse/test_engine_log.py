"""Engine logs, results and metrics (tests/data/sglang): SGLang 0.4.1 to 0.5.14 and vLLM."""

import json
from pathlib import Path

import pytest

from nccltune.parse.accept_rate import ACCEPTED_OF_DRAFTED, EMITTED_OF_VERIFIED, definition
from nccltune.parse.engine_lines import batch_line
from nccltune.parse.engine_log import parse_engine_log

DATA = Path(__file__).parents[2] / "data" / "sglang"


def read(name: str) -> dict:
    document = parse_engine_log((DATA / name).read_text()).to_json()
    json.dumps(document, allow_nan=False)
    return document


def test_accept_length_and_idle_first_line():
    log = read("01-v053-accept-len-and-rate.txt")
    assert log["accept_length"]["values"] == [2.20, 1.93, 1.82, 2.10, 1.80, 1.60]
    # 11.45 / 6.
    assert log["accept_length"]["mean"] == pytest.approx(1.908, abs=5e-4)
    assert log["decode_tokens_per_s"]["median"] == 166.03
    (excluded,) = log["decode_tokens_per_s"]["excluded"]
    assert excluded["value"] == 0.41
    assert "idle" in excluded["reason"]
    assert (log["engine"], log["cuda_graph"], len(log["records"])) == ("sglang", True, 6)
    # 2.20 / 4 = 0.55 and 1.60 / 4 = 0.40: over the verified tokens.
    assert log["accept_rate"]["definition"] == EMITTED_OF_VERIFIED


def test_no_speculation_is_neither_one_nor_zero():
    log = read("03-v041-no-spec-retraction.txt")
    assert (log["accept_length"], log["accept_rate"], log["cuda_graph"]) == (None, None, None)
    assert log["decode_tokens_per_s"]["values"] == [10.90, 10.95, 10.93]
    assert sum(record["type"] == "retraction" for record in log["records"]) == 3
    assert any("3 retraction" in warning for warning in log["warnings"])
    # "Decode out of memory happened" is a retraction, not a failure.
    assert log["error"] is None


def test_comma_form_with_graphs_off_then_on():
    log = read("04-comma-form-cuda-graph-off-then-on.txt")
    assert [(r["num_running"], r["cuda_graph"]) for r in log["records"]] == [
        (46, False), (36, False), (28, True), (22, True), (20, True)
    ]  # fmt: skip
    assert (log["cuda_graph"], log["accept_length"]) == ("mixed", None)
    assert log["decode_tokens_per_s"]["by_num_running"]["28"] == 1088.47


def test_rate_above_one_is_ignored_not_clamped():
    log = read("08-accept-rate-above-one.txt")
    assert (log["accept_length"]["values"], log["accept_rate"]) == ([3.45], None)
    assert any("1.15" in warning for warning in log["warnings"])


def test_bench_serving_table():
    log = read("09-bench-serving-accept-length.txt")
    (record,) = log["records"]
    assert (record["num_completed"], record["duration_s"], record["max_concurrency"]) == (100, 80.12, None)
    assert (log["output_throughput_tok_s"], log["accept_length"]["mean"]) == (159.76, 2.54)
    assert log["decode_tokens_per_s"] is None


def test_bench_jsonl_with_a_baseline():
    log = read("12-bench-jsonl-appended-null.txt")
    assert [(r["max_concurrency"], r["accept_length"], r["output_throughput_tok_s"]) for r in log["records"]] == [
        (1, None, 166.7752), (1, 2.87, 309.3656), (16, 2.61, 1857.5964)
    ]  # fmt: skip
    assert log["accept_length"]["values"] == [2.87, 2.61]
    assert log["output_throughput_tok_s"] is None


def test_a_cut_jsonl_line_does_not_hide_the_others():
    lines = (DATA / "12-bench-jsonl-appended-null.txt").read_text().splitlines()
    log = parse_engine_log("\n".join([lines[0], lines[1][:80], lines[2]]))
    assert [r["output_throughput_tok_s"] for r in log.results] == [166.7752, 1857.5964]


def test_prometheus_takes_the_target_not_the_draft():
    log = read("13-prometheus-draft-and-unified.txt")
    assert (log["accept_length"]["values"], log["accept_rate"]["values"]) == ([2.9], [0.63])
    assert log["decode_tokens_per_s"]["median"] == 148.2


def test_vllm_v1_line():
    log = read("15-vllm-v1-specdecoding.txt")
    (record,) = log["records"]
    assert (log["engine"], log["accept_length"]["mean"]) == ("vllm", 5.38)
    assert log["accept_rate"]["values"] == [0.875]
    assert record["per_position_rate"] == [0.982, 0.946, 0.911, 0.857, 0.679]
    assert (record["num_accepted"], record["num_drafted"]) == (245, 280)


def test_vllm_line_with_the_rate_last_and_throughput():
    text = (
        "INFO 01-01 00:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.52, Accepted throughput: 4.41 "
        "tokens/s, Drafted throughput: 8.7 tokens/s, Accepted: 152 tokens, Drafted: 300 tokens, Per-position acceptance rate: "
        "0.700, 0.500, 0.320, Avg Draft acceptance rate: 50.7%\n"
        "INFO 01-01 00:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 88.5 "
        "tokens/s, Running: 2 reqs, Waiting: 0 reqs\n"
    )
    log = parse_engine_log(text)
    assert log.engine == "vllm"
    assert log.results[0]["per_position_rate"] == [0.7, 0.5, 0.32]
    assert log.accept_rate.values == [pytest.approx(0.507)]
    assert log.decode_rates() == [(2, 88.5)]


def test_vllm_counters():
    text = (
        'vllm:spec_decode_num_drafts_total{model_name="m"} 100.0\n'
        'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 300.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 150.0\n'
    )
    log = parse_engine_log(text)
    # 1 + 150 / 100 tokens per verify; 150 of 300 drafts.
    assert (log.engine, log.accept_length, log.accept_rate.values) == ("vllm", 2.5, [0.5])


def test_custom_all_reduce_off_is_news_not_an_error():
    log = read("20-custom-allreduce-disabled.txt")
    assert (log["custom_all_reduce"], log["error"], log["engine"]) == (False, None, "sglang")
    assert [r["rank"] for r in log["records"] if r["type"] == "custom_all_reduce"] == ["TP3", "TP0"]
    assert log["records"][-1] == {"type": "server_ready"}
    assert any("NCCL carries" in warning for warning in log["warnings"])


def test_two_definitions_of_the_rate():
    log = read("24-accept-rate-two-definitions.txt")
    assert log["accept_length"]["values"] == [2.71, 2.76]
    assert log["accept_rate"]["definition"] == "mixed"
    assert any("not comparable" in warning for warning in log["warnings"])


@pytest.mark.parametrize(
    ("length", "rate", "width", "expected"),
    [
        (2.71, 0.57, None, ACCEPTED_OF_DRAFTED),  # 1.71 / 3 = 0.570; 2.71 / 0.57 = 4.75
        (2.76, 0.69, None, EMITTED_OF_VERIFIED),  # 2.76 / 4 = 0.690; 1.76 / 0.69 = 2.55
        (2.00, 0.50, None, "ambiguous"),  # 1 / 2 and 2 / 4
        (2.00, 0.50, 3, ACCEPTED_OF_DRAFTED),  # 1 / 2 with 3 tokens a verify
        (2.00, 0.50, 4, EMITTED_OF_VERIFIED),
        (2.00, 0.91, None, "unknown"),
    ],
)
def test_definition_from_one_pair(length, rate, width, expected):
    assert definition(length, rate, width) == expected


def test_real_server_log_of_0_5_14():
    log = read("h200-x2-eagle3-d3.txt")
    decode = log["decode_tokens_per_s"]
    # First line after the start, and lines whose interval holds a prefill and the wait before it.
    assert {5.48, 70.72, 73.69, 62.61, 185.93} <= {e["value"] for e in decode["excluded"]}
    assert 285.87 in decode["values"]
    assert decode["by_num_running"]["1"] == pytest.approx(275.4, abs=1.0)
    assert log["accept_rate"]["definition"] == ACCEPTED_OF_DRAFTED
    assert log["accept_length"]["mean"] == 2.0


def test_batch_line_forms():
    line = "[2026-01-01 00:00:00 DP1 TP0 EP0] Decode batch [1240], #running-req: 3, #token: 99, gen throughput (token/s): 7.5"
    batch = batch_line(line)
    assert (batch.rank, batch.num_running, batch.num_tokens, batch.tokens_per_s) == ("DP1 TP0 EP0", 3, 99, 7.5)
    assert batch.accept_length is None
    assert batch_line("nothing of the kind") is None


def test_every_data_parallel_rank_has_a_first_line():
    rows = []
    for rank in ("DP0 TP0", "DP1 TP0"):
        rows.append(f"[2026-01-01 00:00:00 {rank}] Prefill batch, #new-seq: 1, #new-token: 5")
        rows += [
            f"[2026-01-01 00:00:0{i} {rank}] Decode batch, #running-req: 1, #token: 9, gen throughput (token/s): {rate}"
            for i, rate in enumerate((1.5, 100.0, 101.0))
        ]
    log = parse_engine_log("\n".join(rows))
    assert sorted(rate for _, rate in log.decode_rates()) == [100.0, 100.0, 101.0, 101.0]


def test_a_crash_is_an_error():
    log = parse_engine_log(
        "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    )
    assert log.error.kind == "out_of_memory"


def test_server_state():
    log = parse_engine_log('{"internal_states": [{"avg_spec_accept_length": 1.9, "last_gen_throughput": 50.0}]}')
    assert log.accept_lengths == [1.9]


@pytest.mark.parametrize("text", ["", "hello", "{}", "{", "[1]", "null"])
def test_nothing_to_read(text):
    assert parse_engine_log(text).is_empty


LINES = """\
[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, #token: 90, accept len: 2.00, accept rate: 0.50, gen throughput (token/s): 170.0, #queue-req: 0
[2026-01-01 00:00:01 TP0] Decode batch, #running-req: 1, #token: 90, accept len: {}, accept rate: 0.50, gen throughput (token/s): 171.0, #queue-req: 0
"""


@pytest.mark.parametrize("length", ["nan", "inf", "1_0", "abc"])
def test_a_field_that_is_no_number_is_named(length):
    log = parse_engine_log(LINES.format(length))
    assert log.accept_lengths == [2.0]
    assert f"not a number, left out: accept len: {length}" in log.warnings


@pytest.mark.parametrize("length", ["-2.2", "0.50"])
def test_an_impossible_accept_length_is_excluded_and_named(length):
    log = parse_engine_log(LINES.format(length))
    (excluded,) = log.to_json()["accept_length"]["excluded"]
    assert excluded == {"value": float(length), "reason": "below 1: impossible with the bonus token"}
    assert any("accept lengths below 1" in warning for warning in log.warnings)


def test_no_verify_is_no_impossible_length():
    log = parse_engine_log(LINES.format("0.00"))
    assert (log.accept_lengths, log.excluded_lengths) == ([2.0], [0.0])
    assert not any("below 1" in warning for warning in log.warnings)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400, '"text"', "true"])
def test_json_values_that_are_no_numbers_are_left_out_and_named(value):
    text = '{"backend": "sglang", "output_throughput": 100.0, "request_rate": Infinity, "accept_length": 2.0}\n'
    log = parse_engine_log(text + text.replace("2.0}", value + "}"))
    document = log.to_json()
    json.dumps(document, allow_nan=False)
    assert log.accept_lengths == [2.0]
    assert document["records"][1]["request_rate"] == "inf"
    assert any(warning.startswith("not a number, left out: accept_length") for warning in log.warnings)


def test_broken_and_foreign_json_lines_are_counted():
    whole = '{"backend": "sglang", "output_throughput": 100.0, "accept_length": 2.0}\n'
    log = parse_engine_log(whole + "garbage\n" + whole[:30] + "\n" + '{"a": 1}\n' + whole)
    assert log.accept_lengths == [2.0, 2.0]
    assert any("no whole JSON" in warning and ": 2;" in warning for warning in log.warnings)
    assert "JSON documents without a known result, left out: 1" in log.warnings


def test_bench_tables_metrics_and_vllm_lines_name_what_is_no_number():
    table = "============ Serving Benchmark Result ============\nBackend: sglang\nTraffic request rate: inf\nAccept length: nan\nOutput token throughput (tok/s): inf\n"
    log = parse_engine_log(table)
    assert (log.results[0]["request_rate"], log.results[0]["accept_length"], log.results[0]["output_throughput_tok_s"]) == ("inf", None, None)  # fmt: skip
    gauge = parse_engine_log('sglang:spec_accept_length{tp_rank="0"} NaN\nsglang:gen_throughput{tp_rank="0"} 10\n')
    line = "SpecDecoding metrics: Draft acceptance rate: 0.5.1, Mean acceptance length: nan, Accepted: 10 tokens, Drafted: 20 tokens"
    for found in (log, gauge, parse_engine_log(line)):
        assert any(warning.startswith("not a number") for warning in found.warnings)
