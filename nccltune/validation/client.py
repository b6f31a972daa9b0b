"""HTTP to an SGLang server with the standard library: state, metrics, streamed generation. Never through a proxy."""

import http.client
import json
import math
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nccltune.errors import InputError

_MAX_BYTES = 64 * 1024 * 1024


class ServerError(Exception):
    """A server did not answer as SGLang does; ``kind`` is one of the record's error kinds."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True, slots=True)
class Mark:
    """One streamed chunk: when it came, tokens and verifies of the request so far."""

    time_s: float
    num_tokens: int
    num_verifies: int


@dataclass
class Stream:
    """One finished request."""

    sent_s: float
    marks: list[Mark] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


class Client:
    """One server by its URL."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"'{url}' is not the URL of a server", "", "write for example http://127.0.0.1:30000")
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def text(self, path: str, timeout_s: float | None = None) -> str:
        """GET a path as text; raises ServerError."""
        with self._open(urllib.request.Request(self.url + path), timeout_s) as answer:
            return _read(answer)

    def json(self, path: str, body: dict[str, Any] | None = None, timeout_s: float | None = None) -> Any:
        """GET, or POST ``body``, and return the JSON answer; raises ServerError."""
        with self._open(self._request(path, body), timeout_s) as answer:
            return _parsed(_read(answer), path)

    def server_info(self) -> dict[str, Any]:
        """Return the server's arguments and state; raises ServerError ``wrong_version`` where no such path exists."""
        last: ServerError | None = None
        for path in ("/server_info", "/get_server_info"):
            try:
                info = self.json(path)
            except ServerError as trouble:
                if trouble.kind != "wrong_version":
                    raise
                last = trouble
                continue
            if not isinstance(info, dict):
                raise ServerError("garbage", f"{path} answered with {type(info).__name__}, not with an object")
            return info
        raise ServerError("wrong_version", "the server has neither /server_info nor /get_server_info: is it SGLang?") from last  # fmt: skip

    def generate(self, prompt: dict[str, Any], num_tokens: int, timeout_s: float) -> Stream:
        """Generate exactly ``num_tokens`` greedily, streamed; ``timeout_s`` without a byte is a hang."""
        body = {
            **prompt, "stream": True,
            "sampling_params": {"max_new_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True},
        }  # fmt: skip
        stream = Stream(time.perf_counter())
        with self._open(self._request("/generate", body), timeout_s) as answer:
            for document in _events(answer):
                meta = document.get("meta_info")
                if not isinstance(meta, dict):
                    raise ServerError("garbage", f"/generate streamed no meta_info: {_short(json.dumps(document))}")
                stream.meta = meta
                marks = (_count(meta.get("completion_tokens")), _count(meta.get("spec_verify_ct")))
                stream.marks.append(Mark(time.perf_counter(), *marks))
        if not stream.marks or stream.marks[-1].num_tokens < 1:
            raise ServerError("garbage", "/generate ended without a generated token")
        _check_finished(stream, num_tokens)
        return stream

    def _request(self, path: str, body: dict[str, Any] | None) -> urllib.request.Request:
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})

    def _open(self, request: urllib.request.Request, timeout_s: float | None) -> Any:
        path = request.full_url.removeprefix(self.url)
        try:
            return _Guard(self._opener.open(request, timeout=timeout_s or self.timeout_s), path)
        except urllib.error.HTTPError as error:
            kind = "wrong_version" if error.code in (404, 405, 501) else "request_failed"
            raise ServerError(kind, f"{path} answered {error.code}: {_short(_error_body(error))}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _trouble(error, path) from error


class _Guard:
    """An open answer whose reading errors become ServerError."""

    def __init__(self, answer: Any, path: str) -> None:
        self._answer = answer
        self._path = path

    def __enter__(self) -> "_Guard":
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes."""
        try:
            return bytes(self._answer.read(size))
        except (OSError, http.client.HTTPException) as error:
            raise _trouble(error, self._path) from error

    def lines(self) -> Iterator[bytes]:
        """Yield lines as they come."""
        try:
            yield from self._answer
        except (OSError, http.client.HTTPException) as error:
            raise _trouble(error, self._path) from error


def _read(answer: _Guard) -> str:
    return answer.read(_MAX_BYTES).decode("utf-8", errors="replace")


def _events(answer: _Guard) -> Iterator[dict[str, Any]]:
    """Data of the server-sent events of a stream, up to ``[DONE]``."""
    for line in answer.lines():
        if not line.startswith(b"data:"):
            if line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise ServerError("garbage", f"/generate streamed: {_short(line.decode(errors='replace'))}")
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        document = _parsed(data.decode("utf-8", errors="replace"), "/generate")
        if not isinstance(document, dict):
            raise ServerError("garbage", f"/generate streamed: {_short(data.decode(errors='replace'))}")
        if "error" in document:
            raise ServerError("request_failed", f"/generate streamed an error: {_short(json.dumps(document['error']))}")
        yield document


def _check_finished(stream: Stream, num_tokens: int) -> None:
    """A server that dies in mid-stream just ends the answer; one that gives a request up says so in the last chunk."""
    reason, found = stream.meta.get("finish_reason"), stream.marks[-1].num_tokens
    if isinstance(reason, dict) and reason.get("type") == "abort":
        raise ServerError("request_failed", f"the server aborted the request: {_short(str(reason.get('message') or reason))}")  # fmt: skip
    if reason is None or found < num_tokens:
        raise ServerError("request_failed", f"the stream broke off after {found} of {num_tokens} tokens")


def _parsed(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ServerError("garbage", f"{path} answered with something that is not JSON: {_short(text)}") from None


def _trouble(error: Exception, path: str) -> ServerError:
    reason = getattr(error, "reason", error)
    if isinstance(error, TimeoutError) or isinstance(reason, TimeoutError | socket.timeout):
        return ServerError("hang", f"{path} did not answer in time")
    return ServerError("request_failed", f"{path}: {_short(str(reason) or type(reason).__name__)}")


def _error_body(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(2000).decode("utf-8", errors="replace")
    except OSError:
        return error.reason


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:197] + "..."
