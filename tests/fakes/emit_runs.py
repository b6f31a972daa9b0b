"""A synthetic run folder made through the schemas: every number here is an input of a test, none is a measurement."""

from pathlib import Path

from nccltune.schemas.fit import CurvePoint, Fit, SettingFit
from nccltune.schemas.machine import GpuRecord, LibraryRecord, Machine
from nccltune.schemas.measurement import Choice, Measurement
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

DECODE = (14336, 43008, 229376)
PREFILL = 8388608
HALF_WIDTH = 0.01  # 90% interval of every point: +- 1%


def curve(times_us, choices=None, half_width=HALF_WIDTH):
    """Points at the decode sizes, and at the prefill size when four times are given."""
    return [
        CurvePoint(
            size_bytes=size, time_us=time, low_us=time * (1 - half_width), high_us=time * (1 + half_width),
            choice=(choices or {}).get(size),
        )
        for size, time in zip((*DECODE, PREFILL), times_us, strict=False)
    ]  # fmt: skip


def entry(env, times_us, *, name=None, usable=True, reason="", choices=None):
    """One setting's fit."""
    setting = Setting(name=name, env=env) if name else (Setting.make(env) if env else BASE)
    points = curve(times_us, choices) if usable else []
    return SettingFit(setting=setting, timing="in-forward", usable=usable, reason=reason, points=points)


def choice(algo, proto, num_channels):
    """What NCCL used at one size."""
    return Choice(algo=algo, proto=proto, num_channels=num_channels, source="nccl-log")


def make_fit(settings, best=None, **changes):
    """A fit over these settings."""
    fields = dict(
        nccltune_version="0.1.0", created_at="2026-11-29T12:00:00+00:00", command=["nccltune", "scan"], run_id="r1", machine="test machine", num_ranks=8,
        base="sglang", base_env={"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}, model=None, timing="in-forward", settings=settings, best=best,
    )  # fmt: skip
    return Fit(**{**fields, **changes})


def make_machine(version="2.28.9", link="PHB", num_gpus=8):
    """A machine whose GPUs are all joined by ``link``."""
    names = [f"GPU{i}" for i in range(num_gpus)]
    links = {a: {b: link for b in names if b != a} for a in names}
    return Machine(
        hostname_hash="deadbeef", os="Linux", kernel="6.1", python="3.11", cpu_model="Test CPU", num_cpus=2, memory_bytes=1,
        gpus=[GpuRecord(index=i, name="Test GPU") for i in range(num_gpus)], gpu_links=links, driver_version="590.1",
        nccl=LibraryRecord(path="libnccl.so.2", version=version) if version else None,
    )  # fmt: skip


def make_run(
    path: Path,
    fit: Fit,
    *,
    machine: Machine | None = None,
    backend="nccl",
    measurements: list[Measurement] | None = None,
) -> Path:
    """Write a run folder with its fit."""
    manifest = Manifest(
        nccltune_version="0.1.0", created_at="2026-11-29T12:00:00+00:00", command=["nccltune", "scan"], run_id=fit.run_id, backend=backend, base=fit.base,
        base_env=fit.base_env, num_ranks=fit.num_ranks, dtype="bfloat16", model=fit.model, tokens=[1, 3, 16], size_bytes=[*DECODE], timings=["in-forward"],
        settings=[s.setting for s in fit.settings], plan_id="p", machine=machine or make_machine(), status="complete",
    )  # fmt: skip
    run = Run.create(path, manifest)
    run.save_fit(fit)
    if measurements:
        run.append(measurements)
    return path


SET = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "16777216"}


def tuned_fit(prefill=(100.0, 100.0), **changes) -> Fit:
    """Base 20/20/40 us; LL + Ring + buffer 10/10/20; without Ring 15/15/30; without the buffer as with it."""
    base_prefill, tuned_prefill = prefill
    settings = [
        entry({}, (20, 20, 40, base_prefill), choices={s: choice("Tree", "LL", 2) for s in DECODE} | {PREFILL: choice("Ring", "Simple", 24)}),
        entry(SET, (10, 10, 20, tuned_prefill), name="tuned", choices={s: choice("Ring", "LL", n) for s, n in zip(DECODE, (1, 3, 14), strict=True)}),
        entry({"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "16777216"}, (15, 15, 30, tuned_prefill)),
        entry({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, (10.02, 10.02, 20.04, tuned_prefill)),
        entry({"NCCL_ALGO": "Ring"}, (18, 18, 36, base_prefill)),
        entry({"NCCL_PROTO": "Simple"}, (30,), usable=False, reason="wrong results"),
    ]  # fmt: skip
    return make_fit(settings, best="tuned", **changes)
