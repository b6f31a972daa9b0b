"""Methods beside NCCL without GPUs: why they are not available, and how their communicators come and go."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the measuring extra is not installed")

from nccltune.bench import beside  # noqa: E402
from nccltune.bench.effective import kernels_only  # noqa: E402
from nccltune.bench.session import Session, SessionOptions, UnavailableError  # noqa: E402
from nccltune.launch import local  # noqa: E402
from nccltune.methods import METHODS  # noqa: E402

V2 = ("engine.fake_v2", "CustomAllReduceV2")


def fake_torch(peers=True, ops=("one_shot_all_reduce", "two_shot_all_reduce_")):
    return SimpleNamespace(
        __version__="2.11.0",
        bfloat16=torch.bfloat16,
        zeros=lambda *shape, dtype, device: torch.zeros(*shape, dtype=dtype),
        as_tensor=lambda memory, device: torch.ones(memory.__cuda_array_interface__["shape"][0], dtype=torch.uint8),
        ops=SimpleNamespace(symm_mem=SimpleNamespace(**dict.fromkeys(ops))),
        cuda=SimpleNamespace(
            can_device_access_peer=lambda a, b: peers, synchronize=lambda device: None, empty_cache=lambda: None
        ),
        distributed=SimpleNamespace(is_initialized=lambda: True, group=SimpleNamespace(WORLD="world")),
    )


def place(num_elements=1 << 20, library=None):
    return beside.Place(
        fake_torch(), torch.device("cpu"), "bfloat16", 0, 2, num_elements, "/nowhere", library, "00" * 128, "log", 0
    )


class FakeLibrary:
    """What a WindowComm calls, in order."""

    def __init__(self, windows=True, window=7):
        self.has_windows, self.calls, self._window = windows, [], window

    def version(self):
        return "2.26.2"

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            return {"mem_alloc": 4096, "window_register": self._window, "init_rank": 1}.get(name)

        return call


class FakeKernel:
    """What SglangComm calls of SGLang's classes."""

    max_size = 8 << 20

    def __init__(self, group, device):
        self.disabled, self.group, self.sizes, self.num_closed = device.type != "cpu", group, [], 0

    def should_custom_ar(self, tensor):
        return tensor.numel() * tensor.element_size() <= self.max_size

    def custom_all_reduce(self, tensor):
        self.sizes.append(tensor.numel())
        return tensor * 2

    def capture(self):
        return contextlib.nullcontext("capturing")

    def close(self):
        self.num_closed += not self.disabled


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, V2[0], SimpleNamespace(CustomAllReduceV2=FakeKernel))
    monkeypatch.setenv("SGLANG_SKIP_P2P_CHECK", "0")


@pytest.mark.parametrize("method", ["nccl-windows", "symm-mem-one-shot", "sglang-custom-v1"])
def test_without_peer_access_no_method_is_available(method):
    reason = beside.unavailable(method, fake_torch(peers=False), 0, [0, 1], "bfloat16", FakeLibrary())
    assert reason == "GPU 0 cannot reach the memory of GPU 1"


@pytest.mark.parametrize(
    ("method", "fakes", "dtype", "library", "reason"),
    [
        ("nccl-windows", {}, "bfloat16", FakeLibrary(), ""),
        ("nccl-windows", {}, "bfloat16", FakeLibrary(windows=False), "NCCL 2.26.2 has no windows (2.27 and later have)"),
        ("symm-mem-one-shot", {}, "bfloat16", None, ""),
        ("symm-mem-two-shot", {}, "float16", None, "torch symmetric memory sums bfloat16 and float32 only"),
        ("symm-mem-two-shot", {"ops": ("one_shot_all_reduce",)}, "float32", None, "torch 2.11.0 has no symmetric memory"),
        ("sglang-custom-v2", {}, "bfloat16", None, "sgl_kernel is not installed"),
    ],
)  # fmt: skip
def test_each_method_says_why_it_is_not_available(method, fakes, dtype, library, reason):
    found = beside.unavailable(method, fake_torch(**fakes), 1, [0, 1], dtype, library)
    assert found.startswith(reason) if reason else found == ""


def test_an_engine_that_does_not_import_is_a_reason(monkeypatch, tmp_path):
    for package, text in (("sgl_kernel", ""), ("sglang", "raise OSError('libcuda is missing\\nsecond line')")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    reason = beside.unavailable("sglang-custom-v1", fake_torch(), 0, [0, 1], "bfloat16")
    assert reason == "SGLang cannot be imported (OSError: libcuda is missing)"


def test_window_is_taken_back_before_its_communicator_and_its_memory_go():
    library = FakeLibrary()
    comm = beside.open_comm("nccl-windows", place(1000, library))
    # 1000 bfloat16 lie in one page of 2 MiB; the tensor has exactly the elements asked for, and is empty of old data.
    assert comm.buffer.shape == (1000,)
    assert comm.buffer.dtype == torch.bfloat16
    assert not comm.buffer.any()
    comm.close(abort=False)
    assert comm.buffer is None
    assert library.calls == ["init_rank", "mem_alloc", "window_register", "window_deregister", "destroy", "mem_free"]


def test_aborted_window_waits_for_nobody():
    library = FakeLibrary()
    beside.open_comm("nccl-windows", place(1000, library)).close(abort=True)
    assert library.calls == ["init_rank", "mem_alloc", "window_register", "abort"]


def test_gpus_without_windows_are_refused_and_the_communicator_does_not_stay():
    library = FakeLibrary(window=None)
    with pytest.raises(beside.Refused, match="does not register symmetric windows"):
        beside.open_comm("nccl-windows", place(1000, library))
    assert library.calls[-1] == "abort"


def test_sglang_is_warmed_up_outside_captures_and_left_once(kernel):
    # 1 Mi bfloat16 fit into its 8 MiB; both the small and the large kernel run before any capture.
    comm = beside.SglangComm(place(), *V2)
    inner = comm._kernel
    assert inner.group == "world"
    assert sorted(inner.sizes) == [64, 1 << 20]
    with comm.capturing() as state:
        assert state == "capturing"
    assert comm.all_reduce(torch.ones(8, dtype=torch.bfloat16), None).tolist() == [2.0] * 8
    comm.close(abort=False)
    inner.close()  # as its destructor does
    assert inner.num_closed == 1


def test_sglang_refuses_what_the_engine_would_give_to_nccl(kernel):
    # 8 Mi bfloat16 are 16 MiB: warmed up at its largest size, 4 Mi elements, and refused above.
    comm = beside.SglangComm(place(8 << 20), *V2)
    assert sorted(comm._kernel.sizes) == [64, 4 << 20]
    with pytest.raises(beside.Refused, match="16777216 B to NCCL"):
        comm.all_reduce(torch.zeros(8 << 20, dtype=torch.bfloat16), None)


def test_a_switched_off_engine_kernel_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(FakeKernel, "__init__", lambda self, group, device: setattr(self, "disabled", True))
    with pytest.raises(beside.Refused, match="does not use it"):
        beside.SglangComm(place(), *V2)


def test_graph_kernels_and_errors_are_kept_per_size():
    found = kernels_only(
        [
            {"size_bytes": 64, "nodes": [{"name": "a"}, {"name": "a"}, {"name": "b"}, {"name": ""}], "model_us": None},
            {"size_bytes": 128, "nodes": [], "model_us": None},
            {"size_bytes": 256, "nodes": [], "model_us": None, "error": "Refused: too large"},
        ]
    )
    assert found.choices[64].kernel == "a+b"
    assert found.choices[128].kernel is None
    assert found.errors == {256: "Refused: too large"}


def test_ranks_never_use_multicast(monkeypatch):
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    assert local.environment()["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"


class FakeGroup:
    """Answers commands of a session and keeps them."""

    def __init__(self, reason="", at="probe_beside"):
        self.ops, self.messages, self._reason, self._at = [], {}, reason, at

    def call(self, op, timeout_s, *, per_rank=None, ranks=None, **message):
        self.ops.append(op)
        self.messages[op] = {**message, "logs": per_rank}
        reason = self._reason if op == self._at else ""
        answer = {"reason": reason, "unique_id": "ab", "choices": [{"size_bytes": 64, "nodes": [], "model_us": None}]}
        return [answer] if ranks else [{**answer, "reason": ""}, answer]

    def kill(self):
        pass


@pytest.fixture
def session(tmp_path):
    (tmp_path / "libnccl.so.2").write_bytes(b"not loaded here")
    made = Session(SessionOptions("nccl", 2, "bfloat16", 64, 32, libnccl=str(tmp_path / "libnccl.so.2")))
    yield made
    made._group = None
    made.cleanup()


def opened(session, name, group):
    session._group = group
    method = next(m for m in METHODS if m.name == name)
    return session.open_beside(method, {"NCCL_CUMEM_ENABLE": "0", "NCCL_ALGO": "Ring"}, [64])


def test_windows_open_in_a_copy_of_libnccl_with_cumem_on_and_nvls_off(session):
    group = FakeGroup()
    comm = opened(session, "nccl-windows", group)
    assert group.ops == ["probe_beside", "unique_id", "open_beside", "resolve"]
    message = group.messages["open_beside"]
    assert message["env"] == {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring"}
    assert message["unique_id"] == "ab"
    assert message["library"].endswith(".so")
    assert message["devices"] == [0, 1]
    assert len({entry["log"] for entry in message["logs"]}) == 2
    assert 64 in comm.resolution.choices


def test_other_methods_need_no_copy_of_libnccl(session):
    group = FakeGroup()
    opened(session, "symm-mem-one-shot", group)
    assert group.ops == ["probe_beside", "open_beside", "resolve"]
    assert group.messages["open_beside"]["library"] == ""


@pytest.mark.parametrize(
    ("at", "ops"), [("probe_beside", ["probe_beside"]), ("open_beside", ["probe_beside", "open_beside", "close"])]
)
def test_the_reason_of_any_rank_ends_the_opening(session, at, ops):
    group = FakeGroup("sgl_kernel is not installed", at)
    with pytest.raises(UnavailableError, match="sgl_kernel is not installed"):
        opened(session, "sglang-custom-v1", group)
    assert group.ops == ops, "a rank that did open it leaves it again"
