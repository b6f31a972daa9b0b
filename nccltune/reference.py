"""The shipped profile, made from published figures: ``python -m nccltune.reference`` writes it again, digit for digit.

No run of that machine exists. Its tuned setting (LL, Ring over PCIe) is anchored on published tables of the same GPU
where NCCL uses LL: AIConfigurator's, and two of rtx6kpro (a host with a corrected graph file, and one with switches).
The default setting has no curve: its ratio to the tuned one is inferred from the engine points of both.
"""

from pathlib import Path

from nccltune import registry
from nccltune.calibration import Request, make_profile
from nccltune.costmodel.comm import Comm, average
from nccltune.costmodel.curve import curve_from_published
from nccltune.costmodel.profile import REFERENCE, SHIPPED_FOLDER, save_profile
from nccltune.knobs import NAMED
from nccltune.parse.points import read_points
from nccltune.schemas.profile import Profile, ProfileAcceptance

POINTS = SHIPPED_FOLDER / f"{REFERENCE}.csv"
_TUNED = "seed"
# The default tables of the host whose default is Simple (48 us at 32 KB) say nothing about LL.
_NOT_LL_US = 40.0
_CONTEXT = 1024  # not published; assumed, and of little weight: 70 KB of KV per token against 6 GB of weights
# 94.0 tok/s x 19.85 ms = 1.866 against 1 + 0.93 of the worker's own profile: 0.064 apart, so 1.645 x 0.064 either way.
_ACCEPT_LENGTH, _ACCEPT_HALF = 94.0 * 19.85e-3, 0.105


def reference_profile() -> Profile:
    """Build the shipped profile from its points file and the machine file."""
    topology = registry.load_topology("rtx-pro-6000-x8")
    model = registry.load_model("kimi-k2.5")
    tables = [
        t for t in topology.allreduce
        if t.library == "nccl" and t.num_ranks == 8 and dict(zip(t.size_bytes, t.time_us, strict=True)).get(32768, 0) < _NOT_LL_US
    ]  # fmt: skip
    curve = average([curve_from_published(t.model_copy(update={"setting": NAMED[_TUNED]}), t.source) for t in tables])
    comm = Comm(
        {_TUNED: curve}, "published",
        f"no run of that machine: '{_TUNED}' is the mean of {len(tables)} published tables of the same GPU on PCIe, its "
        "scale free within 25%; 'base' is inferred from the engine points",
    )  # fmt: skip
    request = Request(
        model.name, (), context=_CONTEXT, name=REFERENCE, inputs=(POINTS.name, f"topology {topology.name}")
    )
    acceptance = ProfileAcceptance(
        mean=_ACCEPT_LENGTH, low=_ACCEPT_LENGTH - _ACCEPT_HALF, high=_ACCEPT_LENGTH + _ACCEPT_HALF, num_steps=2,
        source="94.0 tok/s x 19.85 ms at 3 draft tokens; the worker's own profile says 1.93, the server log 1.85 to 2.12",
    )  # fmt: skip
    profile = make_profile(
        request, model, topology, 8, comm, _TUNED, read_points(POINTS), "SGLang",
        "8x RTX PRO 6000 Blackwell on PCIe 5 (published figures, no run)", [], best=_TUNED, acceptance=acceptance,
    )  # fmt: skip
    return profile.model_copy(update={"created_at": "2026-11-30T00:00:00+00:00", "command": ["python", "-m", "nccltune.reference"]})  # fmt: skip


def write_reference(folder: Path = SHIPPED_FOLDER) -> Path:
    """Write the shipped profile into ``folder``."""
    path = folder / f"{REFERENCE}.json"
    save_profile(reference_profile(), path)
    return path


if __name__ == "__main__":
    write_reference()
