"""A stand-in for ``python3 -m sglang.launch_server``: its flags, its answers (as recorded from SGLang 0.5.14), its failures.

Its scheduler has step times that are known: ``step_ms``. FAKE_SGLANG_MODE names a failure, FAKE_SGLANG_SPEED divides the
time it really sleeps (its own clock keeps the known times).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORDED_LOG = Path(__file__).parent.parent / "data" / "sglang" / "h200-x2-eagle3-d3.txt"
MODE = os.environ.get("FAKE_SGLANG_MODE", "")
SPEED = float(os.environ.get("FAKE_SGLANG_SPEED", "1"))
INTERVAL = 10  # decode-log-interval
ACCEPT = 2


def step_ms(draft_tokens: int, batch_size: int, proto: str) -> float:
    """Known step times: plain decode 5 ms + 0.2 a request, 1 ms a draft token more; Simple 1.5 times as long."""
    plain = 5.0 + 0.2 * batch_size + (1.0 * draft_tokens if draft_tokens > 1 else 0.0)
    return plain * (1.5 if "Simple" in proto else 1.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch_server.py")
    for flag in (
        "--model-path",
        "--load-format",
        "--speculative-algorithm",
        "--speculative-draft-model-path",
        "--speculative-draft-load-format",
    ):
        parser.add_argument(flag)
    for flag in ("--tp-size", "--port", "--max-running-requests", "--decode-log-interval", "--random-seed", "--speculative-num-steps",
                 "--speculative-eagle-topk", "--speculative-num-draft-tokens"):  # fmt: skip
        parser.add_argument(flag, type=int)
    parser.add_argument("--host")
    parser.add_argument("--cuda-graph-bs-decode", type=int, nargs="+")
    switches = ["--disable-radix-cache", "--enable-metrics", "--skip-server-warmup", "--disable-custom-all-reduce",
                "--enforce-disable-flashinfer-allreduce-fusion", "--skip-tokenizer-init"]  # fmt: skip
    if MODE == "old_version":
        switches.remove("--skip-server-warmup")
    for flag in switches:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(None if __name__ == "__main__" else [])


ARGS = arguments()
WIDTH = ARGS.speculative_num_draft_tokens or 1
TIMES: dict[str, list[float]] = {}
LOCK = threading.Lock()
RUNNING = 0
SERVED = 0


def say(text: str) -> None:
    print(text, flush=True)


def server_info() -> dict:
    state = {"avg_spec_accept_length": float(ACCEPT) if WIDTH > 1 else None, "last_gen_throughput": 272.4,
             "memory_usage": {"weight": 28.56, "kvcache": 6.0, "token_capacity": 131072, "graph": 0.13}}  # fmt: skip
    if os.environ.get("SGLANG_RECORD_STEP_TIME") == "1":
        state["step_time_dict"] = TIMES
    return {
        "version": "0.4.6" if MODE == "other_version" else "0.5.14", "model_path": ARGS.model_path, "tp_size": ARGS.tp_size, "nnodes": 1,
        "skip_tokenizer_init": ARGS.skip_tokenizer_init, "speculative_algorithm": ARGS.speculative_algorithm,
        "speculative_num_steps": ARGS.speculative_num_steps, "speculative_eagle_topk": ARGS.speculative_eagle_topk,
        "speculative_num_draft_tokens": 4 if MODE == "other_width" else ARGS.speculative_num_draft_tokens, "attention_backend": "triton",
        "disable_custom_all_reduce": ARGS.disable_custom_all_reduce, "flashinfer_allreduce_fusion_backend": None, "disable_overlap_schedule": False,
        "internal_states": [state],
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args):
        pass

    def answer(self, code: int, body: bytes, kind: str = "application/json"):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if MODE == "garbage_info" and self.path == "/server_info":
            return self.answer(200, b"<html>Bad Gateway</html>", "text/html")
        if self.path == "/server_info" and MODE != "not_sglang":
            return self.answer(200, json.dumps(server_info()).encode())
        if self.path == "/metrics":
            text = f'sglang:spec_accept_length{{engine_type="unified",tp_rank="0",pp_rank="0"}} {float(ACCEPT if WIDTH > 1 else 0)}\n'
            return self.answer(200, text.encode(), "text/plain")
        return self.answer(404, b'{"detail":"Not Found"}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/generate":
            return self.generate(body)
        if self.path == "/start_profile":
            threading.Thread(target=write_trace, args=(Path(body["output_dir"]),), daemon=True).start()
            return self.answer(200, b"Start profiling.\n", "text/plain")
        return self.answer(404, b'{"detail":"Not Found"}')

    def chunk(self, document):
        data = b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def generate(self, body):
        global RUNNING, SERVED
        with LOCK:
            RUNNING += 1
            SERVED += 1
            number = SERVED
        try:
            if MODE == "hang" or (MODE in ("hang_later", "deaf") and number > 1):
                time.sleep(3600)
            if MODE == "die_later" and number > 1:
                say("[2026-11-29 22:54:40.036 TP0] Scheduler hit an exception: Traceback (most recent call last):")
                say(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB"
                )
                os._exit(137)
            if MODE == "garbage":
                return self.answer(200, b"<html>hello</html>", "text/html")
            if MODE == "error_events" and number > 1:
                self.begin_stream()
                self.chunk({"error": {"message": "KV cache pool is full", "code": 500}})
                return self.end_stream()
            return self.stream(body, number)
        finally:
            with LOCK:
                RUNNING -= 1

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def end_stream(self):
        self.chunk(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def stream(self, body, number):
        wanted = body["sampling_params"]["max_new_tokens"]
        prompt = len(body.get("input_ids") or body.get("text", "").split())
        self.begin_stream()
        time.sleep(0.03)  # until every request of the batch has arrived
        batch = RUNNING
        ms = step_ms(WIDTH, batch, os.environ.get("NCCL_PROTO", ""))
        emitted, verifies = 1, 0
        per_step = 1 if WIDTH == 1 else min(ACCEPT, WIDTH)
        leader = number % batch == 0
        if leader:
            self.record(batch, 20 * ms)  # the first interval holds the prefill
        while True:
            done = emitted >= wanted
            meta = {"id": str(number), "prompt_tokens": prompt, "completion_tokens": min(emitted, wanted), "cached_tokens": 0,
                    "finish_reason": {"type": "length", "length": wanted} if done else None}  # fmt: skip
            if WIDTH > 1 and done:
                meta |= {
                    "spec_verify_ct": wanted // per_step,
                    "spec_accept_length": wanted / (wanted // per_step),
                    "spec_accept_rate": 0.5,
                }
            self.chunk({"text": "", "output_ids": [100], "meta_info": meta})
            if done:
                break
            time.sleep(ms / 1e3 / SPEED)
            emitted, verifies = emitted + per_step, verifies + 1
            if leader and verifies % INTERVAL == 0:
                self.record(batch, ms)
        self.end_stream()

    def record(self, batch, ms):
        with LOCK:
            TIMES.setdefault(str(batch), []).append(ms / 1e3)
        accept = f"accept len: {ACCEPT:.2f}, accept rate: 0.50, " if WIDTH > 1 else ""
        say(f"[2026-11-29 22:54:39.753 TP0] Decode batch, #running-req: {batch}, #token: 155, token usage: 0.00, {accept}cuda graph: True, "
            f"gen throughput (token/s): {1e3 * batch / ms:.2f}, #queue-req: 0")  # fmt: skip


def write_trace(folder: Path):
    """Two ranks, four cycles: a graph with 97 all-reduces of 8 us between products of 5 us; rank 1 waits 1 us longer."""
    time.sleep(0.2)
    for rank in (0, 1):
        events, now = [], 0.0
        for launch in range(4):
            events.append(
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaGraphLaunch",
                    "ts": now,
                    "dur": 1,
                    "args": {"correlation": launch + 1},
                }
            )
            for _ in range(97):
                for name, us in (
                    ("gemm", 5.0),
                    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 8.0 + rank),
                ):
                    args = {"device": rank, "correlation": launch + 1, "grid": [4, 1, 1]}
                    events.append({"ph": "X", "cat": "kernel", "name": name, "ts": now, "dur": us, "args": args})
                    now += us
            now += 50
        (folder / f"1732800000-TP-{rank}.trace.json").write_text(json.dumps({"traceEvents": events}))


def main():
    say(
        f"[2026-11-29 22:53:47.481] server_args=ServerArgs(speculative_num_draft_tokens={WIDTH},tp_size={ARGS.tp_size})"
    )
    say(
        "[2026-11-29 22:54:15.372 TP0] Ignore import error when loading sglang.srt.models.bailing_moe_linear: No module named 'flashinfer'"
    )
    if MODE == "crash":
        say("ValueError: head_dim 96 is not supported by this attention backend")
        sys.exit(1)
    if MODE == "out_of_memory":
        say("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
        sys.exit(1)
    if MODE == "nccl":
        say(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error, NCCL version 2.28.9"
        )
        say("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.")
        sys.exit(1)
    if MODE == "never_ready":
        time.sleep(3600)
    if MODE == "slow_start":
        time.sleep(1.5)
    if MODE in ("ignores_sigterm", "deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "stray_child":
        # As a scheduler that left the group would: only its parent knows it.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        Path(os.environ["FAKE_SGLANG_PID_FILE"]).write_text(str(child.pid))
    if MODE == "deaf":
        # Deaf too, since an ignored signal is inherited; named like this file, so that a test finds it.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", __file__], start_new_session=True)
    for line in RECORDED_LOG.read_text().splitlines()[1:2]:
        say(line)
    ThreadingHTTPServer((ARGS.host, ARGS.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
