"""What a real SGLang 0.5.14 answered and logged (tests/data/sglang/cpu-0.5.14: on a CPU, small models with dummy weights)."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nccltune.parse.engine_log import parse_engine_log
from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.validation import load, state
from nccltune.validation.client import Client, ServerError
from nccltune.validation.servers import diagnose

DATA = Path(__file__).parents[2] / "data" / "sglang" / "cpu-0.5.14"


def text(name):
    return (DATA / name).read_text()


@pytest.fixture
def replay():
    """A server that gives the same answer to every request, recorded (a file) or written here, and a client of it."""
    answer = {}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args):
            pass

        def reply(self):
            body = answer["body"].encode()
            self.send_response(answer.get("status", 200))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply()

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def client_of(file="", status=200, body=""):
        answer.update(body=body or text(file), status=status)
        return Client(f"http://127.0.0.1:{server.server_port}", timeout_s=5)

    yield client_of
    server.shutdown()
    server.server_close()


def test_a_stream_of_plain_decode(replay):
    stream = replay("stream-plain.txt").generate({"input_ids": [5]}, 12, 5)
    assert [m.num_tokens for m in stream.marks] == list(range(1, 13))
    assert {m.num_verifies for m in stream.marks} == {0}


def test_a_stream_with_speculation_counts_its_verifies_at_the_end(replay):
    stream = replay("stream-eagle3.txt").generate({"input_ids": [5]}, 12, 5)
    # The prefill's token, then two a verify; the last verify goes beyond the 12 that were asked for.
    assert [m.num_tokens for m in stream.marks] == [1, 3, 5, 7, 9, 11, 12]
    assert [m.num_verifies for m in stream.marks] == [0, 0, 0, 0, 0, 0, 6]
    assert stream.meta["spec_accept_length"] == 2.0
    held = load.measure([stream], drafted=True)
    assert (held.num_tokens, held.num_verifies) == (12, 6)


def test_a_stream_that_breaks_off_is_not_taken_for_an_answer(replay):
    """A server whose scheduler was killed ends the answer without a word (seen with SGLang 0.5.14)."""
    whole = text("stream-plain.txt").split("\n\n")
    with pytest.raises(ServerError, match="broke off after 5 of 12 tokens"):
        replay(body="\n\n".join(whole[:5]) + "\n\n").generate({"input_ids": [5]}, 12, 5)


def test_an_aborted_request_says_why(replay):
    last = {"meta_info": {"completion_tokens": 3, "finish_reason": {"type": "abort", "message": "KV cache pool is full"}}}  # fmt: skip
    with pytest.raises(ServerError, match="aborted the request: KV cache pool is full"):
        replay(body=f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n").generate({"input_ids": [5]}, 12, 5)


@pytest.mark.parametrize(
    ("file", "status", "words"),
    [
        ("stream-error.txt", 200, "longer than the model's context length"),
        ("error-too-long.json", 400, "answered 400"),
        ("error-no-tokenizer.json", 400, "cannot accept text prompts"),
        ("error-bad-json.json", 400, "JSON decode error"),
        ("error-500.txt", 500, "answered 500: Internal Server Error"),
    ],
)
def test_refusals_say_what_the_server_said(replay, file, status, words):
    with pytest.raises(ServerError) as caught:
        replay(file, status).generate({"input_ids": [5]}, 12, 5)
    assert caught.value.kind == "request_failed"
    assert words in caught.value.message


def test_server_info(replay):
    info = replay("server-info-eagle3.json").server_info()
    assert state.version_warnings(info) == []
    times = state.step_times(info)
    assert sorted(times) == ["1", "2", "3", "4"]
    assert all(0.001 < s < 1 for values in times.values() for s in values)
    assert state.all_reduce(info, "", "pcie", "LlamaForCausalLM")["path"] == "nccl"
    assert state.accept_lengths(replay("metrics-eagle3.txt"), info, "") == {
        "server info, since start": 2.0, "metrics, last interval": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "kind", "words"),
    [
        ("start-bad-flag.txt", "wrong_version", "unrecognized arguments: --no-such-flag"),
        ("start-bad-choice.txt", "wrong_version", "invalid choice: 'nothing'"),
        ("start-path-missing.txt", "usage", "OSError: Repo id must be in the form"),
        ("start-no-weights.txt", "usage", "RuntimeError: Cannot find any model weights with `/srv/models/llama-tiny`"),
        ("start-port-held.txt", "port_held", "address already in use"),
        ("start-no-drafter.txt", "crash", "AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'"),
        ("crash-exception.txt", "crash", "IndexError: index out of range in self"),
        ("crash-segfault.txt", "crash", "Fatal Python error: Segmentation fault"),
        ("crash-killed.txt", "crash", "Subprocess scheduler_0 (pid=18058) crashed with exit code -9"),
    ],
)
def test_the_cause_of_a_failure_is_found_in_the_log(file, kind, words):
    found = diagnose(text(file))
    assert found is not None
    assert found.kind == kind
    assert words in found.message
    assert "server_args" not in found.message


def test_a_healthy_log_holds_no_failure():
    log = text("healthy-eagle3.txt")
    assert "server_args=" in log
    assert classify_nccl_error(log) is None
    assert diagnose(log) is None
    read = parse_engine_log(log)
    assert read.error is None
    assert read.engine == "sglang"
    assert read.accept_lengths
