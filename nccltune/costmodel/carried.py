"""The belief of a profile, taken over to the case that is asked: what stays, what widens, what returns to its prior."""

from dataclasses import dataclass, replace

import numpy as np

from nccltune import registry
from nccltune.costmodel import profile as profiles
from nccltune.costmodel.posterior import Posterior
from nccltune.costmodel.priors import COMM_PARAMETERS, Prior, all_priors, setting_exponent, setting_parameter
from nccltune.costmodel.system import System
from nccltune.schemas.model import Model
from nccltune.schemas.profile import Profile
from nccltune.schemas.setting import Setting

_WIDEN_RUN = 0.03  # same machine and engine, communication now measured
_WIDEN_ELSEWHERE = 0.20  # assumed: parameters carried to another machine, rank count or weight format


@dataclass(frozen=True, slots=True)
class Fitting:
    """How far the points of a profile are of the case: ``whole`` in all but the weight format, ``direct`` but for the communication."""

    whole: bool
    direct: bool
    requantized: bool
    """The weights are priced in another format than the model's own."""


def told_settings(profile: Profile | None, whole: bool) -> frozenset[str]:
    """Names of the settings without a curve whose all-reduce time the profile's points tell."""
    parameters = profile.parameters if profile and whole else []
    return frozenset(p.name.removeprefix("setting:") for p in parameters if p.name.startswith("setting:"))


def belief(
    system: System, setting: Setting, profile: Profile | None, fitting: Fitting
) -> tuple[Posterior, dict[str, int]]:
    """Return the belief for a case, and the numbers of the settings of its points (none where they do not apply as they are)."""
    priors = all_priors(system.model, system.basis, system.inferred([setting.name, "base"]))
    if profile is None:
        return Posterior.from_priors(priors), {}
    posterior = profiles.posterior_of(profile)
    if fitting.whole and not fitting.requantized:
        missing = [p for p in priors if p.name not in posterior.names]
        return (posterior if not missing else _with(posterior, missing)), profiles.setting_ids_of(profile)
    inferred = [
        f(name) for name in system.inferred([setting.name, "base"]) for f in (setting_parameter, setting_exponent)
    ]
    communication = [*COMM_PARAMETERS, *inferred]
    # What the points say of the all-reduce holds under any weight format: only compute is in question then.
    reset = [] if fitting.whole else list(communication)
    if _other_experts(system.model, profile):
        reset.append("expert_efficiency")
    widen = _WIDEN_RUN if fitting.direct and not fitting.requantized else _WIDEN_ELSEWHERE
    return posterior.transferred(priors, reset, widen, as_they_are=communication), {}


def _other_experts(model: Model, profile: Profile) -> bool:
    """Whether the expert kernels are others than those that the profile's points timed."""
    if profile.model != model.name:
        return True
    return registry.load_model(profile.model).quantization.routed_experts != model.quantization.routed_experts


def _with(posterior: Posterior, priors: list[Prior]) -> Posterior:
    """Add parameters that the points said nothing about."""
    old, new = len(posterior.priors), len(priors)
    covariance = np.zeros((old + new, old + new))
    covariance[:old, :old] = posterior.covariance
    covariance[old:, old:] = np.diag([p.spread**2 for p in priors])
    theta = np.concatenate([posterior.theta, [p.center for p in priors]])
    seen = posterior.seen
    if seen is not None:
        seen = replace(seen, gradient=np.hstack([seen.gradient, np.zeros((len(seen.residual), new))]))
    return Posterior((*posterior.priors, *priors), theta, covariance, seen, posterior.scale)
