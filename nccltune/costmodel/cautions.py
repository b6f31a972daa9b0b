"""What a user must know before believing a prediction: borrowed machines, unmeasured settings, models that do not fit."""

from dataclasses import dataclass

from nccltune.costmodel.system import System
from nccltune.costmodel.weights import resident_bytes
from nccltune.schemas.fit import Fit
from nccltune.schemas.profile import Profile
from nccltune.schemas.setting import Setting
from nccltune.schemas.topology import Topology
from nccltune.store import Run

ENGINE_MAY_NOT_ASK_NCCL = "on NVLink, SGLang's own all-reduce carries decode-size messages unless it is disabled: NCCL settings then change nothing ('nccltune doctor')"


@dataclass(frozen=True, slots=True)
class Case:
    """What a prediction was resolved to. ``direct``: the profile's points are of this very case; ``told``: settings inferred from them."""

    fit: Fit | None
    run: Run | None
    topology: Topology
    setting: Setting
    system: System
    profile: Profile | None
    direct: bool
    told: frozenset[str]


def not_of_gpus(run: Run | None) -> list[str]:
    """The warning of a run that measured no GPU; none for any other."""
    if run is None or run.manifest.backend != "gloo":
        return []
    return [
        "the run measured gloo over local CPU processes: its all-reduce times stand for no GPU machine; scan on the "
        "serving machine before using these numbers"
    ]


def cautions(case: Case) -> list[str]:
    """List the warnings of a case."""
    fit, run, topology, setting, system, profile = case.fit, case.run, case.topology, case.setting, case.system, case.profile  # fmt: skip
    found = not_of_gpus(run)
    if run is not None and not found and run.manifest.machine.topology is None:
        found.append(f"no machine file matches the run's machine: weights are streamed as on {topology.title}; see 'nccltune topology detect'")  # fmt: skip
    if profile is None:
        found.append(f"no engine point of {system.model.title} on this machine: compute is analytic and wide; add one with 'nccltune calibrate --point decode:1:MS'")  # fmt: skip
    if fit is not None and profile is not None and not case.direct:
        found.append(f"compute parameters are those of profile {profile.name}, carried over and widened")
    if fit is not None and profile is not None and case.direct and profile.run_id != fit.run_id:
        found.append(f"the points of profile {profile.name} were taken without this run (theirs: {profile.run_id or 'none'}): its communication takes the place of theirs")  # fmt: skip
    if setting.name in system.inferred([setting.name]):
        found.append(
            f"no all-reduce curve of setting '{setting.name}' was measured: it is "
            + ("inferred from engine points, extrapolated away from their message sizes" if setting.name in case.told else "the reference curve times what NCCL's own cost model says of the two, with a wide interval")
        )  # fmt: skip
    if topology.links.kind == "nvlink" and fit is None and 1 < system.num_ranks <= 8:
        found.append(ENGINE_MAY_NOT_ASK_NCCL)
    if system.num_ranks > topology.num_gpus:
        found.append(f"{system.num_ranks} ranks are more than the {topology.num_gpus} GPUs of {topology.title}: links to another node are not in the curve")  # fmt: skip
    need = float(resident_bytes(system.model, system.num_ranks))
    if need > topology.gpu.memory_bytes:
        found.append(f"{system.model.title} needs {need / 1e9:.0f} GB of weights per rank at {system.num_ranks} ranks; {topology.gpu.name} has {topology.gpu.memory_bytes / 1e9:.0f} GB")  # fmt: skip
    return found
