"""One rank: reads commands as JSON lines, runs collectives, answers as JSON lines. The only room that imports torch.

Nothing else may import this module: it is started as ``python -m nccltune.bench.worker`` by launch.local.
Answers go to a file descriptor of their own, because NCCL and torch print on stdout and stderr as they like.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from nccltune.bench import faults

_PR_SET_PDEATHSIG = 1


class Rank:
    """The state of one rank between commands."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._torch: Any = None
        self._bench: Any = None
        self._libraries: dict[str, Any] = {}
        self._comms: dict[int, Any] = {}
        self._backend = ""
        self._num_ranks = 0
        self._dtype = ""
        self._device = 0
        self._log_start: int | None = None

    def start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import torch, take the device and allocate the buffers."""
        import torch

        self._torch, self._backend, self._num_ranks = torch, message["backend"], message["num_ranks"]
        self._dtype, self._device = message["dtype"], message["device"]
        arguments = (self._dtype, self.rank, self._num_ranks, message["max_bytes"], message["hidden_size"])
        if self._backend == "gloo":
            from nccltune.bench.cpu_bench import CpuBench

            self._bench = CpuBench(torch, *arguments)
        else:
            from nccltune.bench.cuda_bench import CudaBench

            self._bench = CudaBench(torch, self._device, *arguments)
        return {"torch_version": torch.__version__, **self._bench.facts()}

    def unique_id(self, message: dict[str, Any]) -> dict[str, Any]:
        """Rank 0: make the id of the next communicator in this copy of libnccl."""
        from nccltune.bench.comm import log_size

        # What the library logs from here on belongs to the communicator that this id begins.
        self._log_start = log_size(message["log"])
        return {"unique_id": self._library(message).unique_id().hex()}

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Join a communicator under the given NCCL environment."""
        from nccltune.bench.comm import NcclComm, TorchComm, log_size

        start = log_size(message["log"]) if self._log_start is None else self._log_start
        self._log_start = None
        if self._backend == "nccl":
            library = self._library(message)
            handle = library.init_rank(self._num_ranks, bytes.fromhex(message["unique_id"]), self.rank)
            self._comms[message["comm"]] = NcclComm(library, handle, self._dtype, message["log"], start)
            return {"nccl_version": library.version()}
        import torch.distributed as dist

        self._set_env(message)
        options = {"device_id": self._torch.device("cuda", self._device)} if self._backend == "torch" else {}
        dist.init_process_group(
            "nccl" if self._backend == "torch" else "gloo",
            init_method=f"file://{message['rendezvous']}", rank=self.rank, world_size=self._num_ranks, **options,
        )  # fmt: skip
        self._comms[message["comm"]] = TorchComm(dist, message["log"], start)
        version = ".".join(map(str, self._torch.cuda.nccl.version())) if self._backend == "torch" else None
        return {"nccl_version": version}

    def probe_beside(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say why this rank cannot offer a method beside NCCL, without waiting for another rank."""
        from nccltune.bench.beside import unavailable

        library = self._library(message) if message["library"] else None
        devices, method = message["devices"], message["method"]
        return {"reason": unavailable(method, self._torch, self._device, devices, self._dtype, library)}

    def open_beside(self, message: dict[str, Any]) -> dict[str, Any]:
        """Join a method beside NCCL; a reason instead where it refuses these GPUs."""
        from nccltune.bench.beside import Place, Refused, open_comm
        from nccltune.bench.comm import log_size

        start = log_size(message["log"]) if self._log_start is None else self._log_start
        self._log_start = None
        place = Place(
            self._torch, self._torch.device("cuda", self._device), self._dtype, self.rank, self._num_ranks,
            self._bench.num_elements, message["rendezvous"], self._library(message) if message["library"] else None,
            message.get("unique_id", ""), message["log"], start,
        )  # fmt: skip
        try:
            self._comms[message["comm"]] = open_comm(message["method"], place)
        except Refused as refusal:
            return {"reason": str(refusal)}
        return {"reason": ""}

    def resolve(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say what the library would do for each size; errors are per size."""
        comm, choices = self._comms[message["comm"]], []
        for size in message["size_bytes"]:
            try:
                choices.append(self._bench.resolve(comm, size))
            except Exception as error:
                choices.append(
                    {"size_bytes": size, "nodes": [], "model_us": None, "error": f"{type(error).__name__}: {error}"}
                )
        return {"choices": choices, "log": comm.log_text() if self.rank == 0 else ""}

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Compare sums of fresh data with the exact result."""
        wrong, checked = self._bench.check(self._comms[message["comm"]], message["size_bytes"], message["seeds"])
        return {"num_wrong": wrong, "num_checked": checked}

    def others(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the other collectives of an engine once."""
        return {"faults": self._bench.others(self._comms[message["comm"]], message["size_bytes"])}

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Capture what the next replays time."""
        comm = self._comms[message["comm"]]
        self._bench.begin(
            comm,
            message["comm"],
            message["size_bytes"],
            message["timing"],
            message["num_per_replay"],
            message["weight_bytes"],
        )
        return {}

    def replay(self, message: dict[str, Any]) -> dict[str, Any]:
        """Time a number of replays."""
        result: dict[str, Any] = self._bench.replay(message["num"])
        return result

    def close(self, message: dict[str, Any]) -> dict[str, Any]:
        """Leave a communicator."""
        self._bench.forget(message["comm"])
        comm = self._comms.pop(message["comm"], None)
        if comm is not None:
            comm.close(abort=message.get("abort", False))
        return {}

    def unload(self, message: dict[str, Any]) -> dict[str, Any]:
        """Unload a copy of libnccl whose communicators are all closed."""
        library = self._libraries.pop(message["library"], None)
        if library is not None:
            library.unload()
        return {}

    def facts(self, message: dict[str, Any]) -> dict[str, Any]:
        """Memory now."""
        facts: dict[str, Any] = self._bench.facts()
        return facts

    def _library(self, message: dict[str, Any]) -> Any:
        self._set_env(message)
        path = message["library"]
        if path not in self._libraries:
            from nccltune.bench.libnccl import LibNccl

            self._libraries[path] = LibNccl(path)
        return self._libraries[path]

    def _set_env(self, message: dict[str, Any]) -> None:
        from nccltune.bench.comm import DEBUG_ENV, QUIET_ENV, set_nccl_env

        debug = {} if message["quiet"] else {**DEBUG_ENV, "NCCL_DEBUG_FILE": message["log"]}
        set_nccl_env({**QUIET_ENV, **debug, **message["env"]})


def main() -> None:
    """Answer commands until stdin ends or ``exit`` comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--reply-fd", type=int, required=True)
    arguments = parser.parse_args()
    # The manager decides when a rank ends; a rank must not outlive it, however it dies.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    commands = _CommandReader(os.getppid())
    rank = Rank(arguments.rank)
    with os.fdopen(arguments.reply_fd, "w", encoding="utf-8") as replies:
        while (message := commands.next()) is not None and message["op"] != "exit":
            try:
                spoilt = faults.strike(message["op"], rank.rank, message.get("size_bytes"))
                reply = getattr(rank, message["op"])(message)
                if spoilt:
                    reply["num_wrong"] += 1
            except Exception as error:
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
    # Skip destructors: a communicator left by a failed peer could wait for ever in them.
    os._exit(0)


class _CommandReader:
    """Reads stdin in a thread, so that a rank stuck inside a collective still ends when the manager is gone."""

    def __init__(self, parent: int) -> None:
        import queue

        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._parent = parent
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """The next command, or None at the end."""
        return self._queue.get()

    def _read(self) -> None:
        for line in sys.stdin:
            self._queue.put(json.loads(line))
        self._queue.put(None)
        if os.getppid() != self._parent:
            os._exit(1)


if __name__ == "__main__":
    main()
