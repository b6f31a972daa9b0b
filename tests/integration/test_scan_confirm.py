"""A whole scan with the back end nccl, its confirmation and its env file, over ranks that exist on paper only.

The machine has eight GPUs, and its NCCL resolves a setting as the real one does; times are known. So what is emitted, what is
confirmed and what a resume does can be told without a GPU.
"""

import pytest
from fake_session import FakeSession

import nccltune.bench.execution
import nccltune.bench.report
from nccltune import api, probe
from nccltune.bench.confirm import LAUNCHES
from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.request import ScanRequest
from nccltune.errors import InterruptedRunError, MachineError, QualityError
from nccltune.knobs import BASES
from nccltune.plan import Grid
from nccltune.registry import load_model
from nccltune.schemas.machine import GpuRecord, LibraryRecord
from nccltune.schemas.measurement import Choice
from nccltune.schemas.setting import Setting, parse_setting
from nccltune.store import Run

TOKENS = [1, 4, 8, 16, 512]
NAMES = {"ring": "Ring", "tree": "Tree"}
CHANNELS = parse_setting("NCCL_PROTO=LL;NCCL_MIN_NCHANNELS=16;NCCL_MAX_NCHANNELS=16")


def plain(value):
    """``allreduce:ring`` as a scan spells it."""
    word = value.split(":")[-1]
    return NAMES.get(word.lower(), word)


class PaperSession(FakeSession):
    """Resolves settings: LL up to 1 MiB unless told otherwise, a channel per 14 KiB, 16 where MIN asks for them."""

    noise = 0.01

    def __init__(self, hook, seed):
        super().__init__(self.truth, on=hook, launch_noise=self.noise, seed=seed, sampling_noise=0.003)
        self.facts, self.nccl_version = [], "2.28.9"

    def open(self, env, library_env, size_bytes, *, quiet=False):
        own = {k: v for k, v in env.items() if k != "NCCL_P2P_DISABLE" and BASES["sglang"].get(k) != v}
        spelled = {k: plain(v) if k in ("NCCL_ALGO", "NCCL_PROTO") else v for k, v in own.items()}
        comm = super().open(spelled, library_env, size_bytes)
        comm.env = env
        comm.resolution = Resolution(choices={size: self.choice(spelled, size) for size in size_bytes})
        return comm

    @staticmethod
    def choice(env, size):
        proto = env.get("NCCL_PROTO", "LL" if size < 1 << 20 else "Simple")
        channels = int(env.get("NCCL_MIN_NCHANNELS", max(1, min(24, size // 14336))))
        return Choice(algo=env.get("NCCL_ALGO", "Ring"), proto=proto, num_channels=channels, num_threads=512, kernel="k", source="nccl-log")  # fmt: skip

    @classmethod
    def truth(cls, setting_id, size):
        env = {} if setting_id == "base" else parse_setting(setting_id.replace("; ", ";")).env
        choice = cls.choice(env, size)
        us = {"LL": 15, "LL128": 18, "Simple": 25}[choice.proto] + size / 1e5 * (2 if choice.proto == "LL" else 1)
        return us * (0.8 if choice.num_channels >= 16 else 1.0)


@pytest.fixture
def machine(monkeypatch):
    """Eight GPUs with NVLink, and a session per walk; ``hooks[number of the walk]`` may raise what it likes."""
    gpus = [GpuRecord(index=i, name="NVIDIA H200", num_processes=0) for i in range(8)]
    links = {f"GPU{i}": {f"GPU{j}": "NV18" for j in range(8) if j != i} for i in range(8)}
    library = LibraryRecord(path="/x/libnccl.so.2", version="2.28.9", sha256_16="0" * 16, source="torch")
    known = probe.collect_machine().model_copy(update={"gpus": gpus, "gpu_links": links, "nccl": library, "driver_version": "580.0"})  # fmt: skip
    monkeypatch.setattr(probe, "collect_machine", lambda **_: known)
    monkeypatch.setattr(probe, "find_libnccl", lambda *_a, **_k: library)
    hooks, made = {}, []

    def session(_options):
        made.append(PaperSession(hooks.get(len(made) + 1, lambda *_: None), seed=len(made)))
        return made[-1]

    monkeypatch.setattr(nccltune.bench.execution, "Session", session)
    monkeypatch.setattr(nccltune.bench.report, "Session", session)
    hooks["made"] = made
    return hooks


def scan(folder, grid, **options):
    request = ScanRequest(
        backend="nccl", num_ranks=8, model=load_model("kimi-k2.5"), tokens=TOKENS, grid=grid, beside=False,
        base_extra={"NCCL_P2P_DISABLE": "1"}, **options,
    )  # fmt: skip
    return api.scan(request, output=folder / "run")


def exported(text, base=("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE")):
    pairs = [line.removeprefix("export ").split("=", 1) for line in text.splitlines() if line.startswith("export")]
    return {name: value.strip("'") for name, value in pairs if name not in base}


@pytest.mark.parametrize(
    "grid",
    [
        Grid(protos=("LL", "Simple"), algos=("Ring",), channels=("default", "16")),
        Grid(named=(CHANNELS,)),
        # a buffer does not act on LL: the set that is written was never scanned itself
        Grid(named=(parse_setting("NCCL_PROTO=LL;NCCL_MIN_NCHANNELS=16;NCCL_MAX_NCHANNELS=16;NCCL_BUFFSIZE=16777216"),)),
    ],
)  # fmt: skip
def test_what_is_written_is_what_was_confirmed_and_a_resume_measures_nothing(machine, tmp_path, grid):
    result = scan(tmp_path, grid)
    assert result.outcome == "complete"
    text = api.emit(tmp_path / "run", objective="decode").text
    written = exported(text)
    assert {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"} <= set(written)
    last = result.run.manifest.confirmations[-1]
    assert (last.env, last.num_launches, last.problem, last.outcome) == (written, LAUNCHES, "", "complete")
    assert f"confirmed: {LAUNCHES} more launches of exactly this set" in text
    assert "not separately measured" not in text
    before = len(result.run.all_measurements())
    again = api.scan(None, resume=tmp_path / "run")
    assert len(again.run.all_measurements()) == before
    assert exported(api.emit(tmp_path / "run", objective="decode").text) == written


def test_the_launches_of_a_winner_that_shares_its_measurement_count(machine, tmp_path):
    """Without algorithm and protocol it resolves to the same choice, and is measured once; what is launched again is one of them."""
    result = scan(tmp_path, Grid(protos=("LL",), algos=("Ring",), channels=("default", "16")))
    measurements = result.run.measurements()
    repeats = [m.median_us for m in measurements if m.repeat and m.setting.env and m.size_bytes == 14336]
    assert len(repeats) >= LAUNCHES
    best = next(s for s in result.fit.settings if s.setting.name == result.fit.best)
    point = next(p for p in best.points if p.size_bytes == 14336)
    first = next(m.median_us for m in measurements if not m.repeat and m.setting.env and m.same_as is None and m.choice.num_channels == 16 and m.size_bytes == 14336)  # fmt: skip
    every = sorted([first, *repeats])
    assert every[0] < point.time_us < every[-1]


def hanging(*ops):
    def hook(what, setting_id, size_bytes):
        if what in ops and "NCHANNELS" in setting_id:
            raise RankFailure("hang", "rank 5 did not answer", 5, group_alive=False)

    return hook


def test_a_winner_that_hangs_when_it_is_launched_again_is_not_written(machine, tmp_path):
    machine[2] = hanging("measure")
    result = scan(tmp_path, Grid(named=(CHANNELS,)))
    (found,) = result.run.manifest.confirmations
    assert found.num_launches == 0
    assert result.env_file is None
    with pytest.raises(QualityError, match="it failed: timeout at 14 KiB: rank 5 did not answer"):
        api.emit(tmp_path / "run", objective="decode")


def test_a_winner_under_which_another_collective_hangs_is_not_written(machine, tmp_path):
    machine[2] = machine[3] = hanging("others")  # under the whole set, and under what is left of it
    scan(tmp_path, Grid(named=(CHANNELS,)))
    with pytest.raises(QualityError, match=r"another collective \(.*\) fails under it: hang"):
        api.emit(tmp_path / "run", objective="decode")


def test_a_second_interrupt_in_the_confirmation_says_how_to_go_on(machine, tmp_path):
    def stop(what, setting_id, size_bytes):
        if what == "measure" and "NCHANNELS" in setting_id:
            raise KeyboardInterrupt

    machine[2] = stop
    with pytest.raises(InterruptedRunError) as caught:
        scan(tmp_path, Grid(named=(CHANNELS,)))
    assert "nccltune scan --resume" in caught.value.do
    assert Run.load(tmp_path / "run").manifest.status == "interrupted"
    result = api.scan(None, resume=tmp_path / "run")
    assert (result.outcome, result.run.manifest.status) == ("complete", "complete")
    assert result.run.manifest.confirmations[-1].num_launches == LAUNCHES


def test_a_confirmation_that_cannot_start_leaves_the_scan_as_it_is(machine, tmp_path):
    def no_room(what, setting_id, size_bytes):
        raise MachineError("not enough room", "/dev/shm is full", "")

    machine[2] = no_room
    result = scan(tmp_path, Grid(named=(CHANNELS,)))
    assert (result.outcome, result.run.manifest.status) == ("complete", "complete")
    assert any(note.startswith("the winner was not confirmed: not enough room") for note in result.notes)
    assert "confirmed" not in api.emit(tmp_path / "run", objective="decode").text


def test_the_time_budget_is_for_scan_and_confirmation_together(machine, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    machine[2] = lambda what, *_: now.__setitem__(0, now[0] + 1.0) if what == "open" else None
    machine[1] = lambda what, *_: now.__setitem__(0, now[0] + 1.0) if what == "open" else None
    result = scan(tmp_path, Grid(named=(CHANNELS,)), time_budget_s=5.0)
    (found,) = result.run.manifest.confirmations
    assert found.num_launches < LAUNCHES
    assert (found.outcome, result.outcome) == ("time_limit", "time_limit")
    monkeypatch.undo()


def test_settings_of_a_race_that_were_left_out_at_prefill_are_measured_when_they_are_parts_of_the_winner(
    machine, tmp_path
):
    grid = Grid(protos=("LL", "LL128", "Simple"), algos=("Ring", "Tree"), channels=("default", "8", "16"))
    result = scan(tmp_path, grid, search="race")
    part = Setting.make({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})
    assert {m.status for m in result.run.measurements() if m.setting.id == part.id} == {"ok"}


def test_noise_that_hides_every_difference_fails_the_quality_gate(machine, tmp_path, monkeypatch):
    for noise, fails in ((0.02, False), (0.5, True)):
        monkeypatch.setattr(PaperSession, "noise", noise)
        result = scan(
            tmp_path / str(noise),
            Grid(protos=("LL", "Simple"), algos=("Ring", "Tree"), channels=("default", "8", "16")),
        )
        assert ("too noisy to rank anything" in result.quality_problem) is fails
