"""Profiles as files and as beliefs: load, find the shipped one, and turn one into a posterior and curves."""

from pathlib import Path

import numpy as np

from nccltune import store
from nccltune.costmodel.curve import CommCurve, curve_from_points
from nccltune.costmodel.posterior import DECODE, DRAFT, VERIFY, Features, Posterior, Seen
from nccltune.costmodel.priors import FIXED, Prior
from nccltune.errors import InputError
from nccltune.schemas import profile as schema
from nccltune.schemas.profile import Parameter, Profile
from nccltune.schemas.setting import Setting

SHIPPED_FOLDER = Path(__file__).resolve().parent.parent / "data" / "profiles"
REFERENCE = "kimi-k2.5-rtx-pro-6000-x8"
_NEGATIVE = 1e-6  # nine digits are stored, so that eigenvalues are off by as much


def load_profile(name: str) -> Profile:
    """Load a profile by path, or by the name of a shipped one."""
    path = Path(name)
    if not path.is_file() and "/" not in name and not name.endswith(".json"):
        path = SHIPPED_FOLDER / f"{name}.json"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in SHIPPED_FOLDER.glob("*.json")))
            raise InputError(f"no profile is called '{name}'", f"shipped: {known}", "give the path of a file that 'nccltune calibrate' wrote")  # fmt: skip
    profile = store.load_document(path, Profile, schema.SCHEMA, schema.SCHEMA_VERSION)
    _check(profile, path)
    return profile


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile."""
    store.write_json(path, {"schema": schema.SCHEMA, **profile.model_dump(mode="json", exclude_defaults=True), "schema_version": schema.SCHEMA_VERSION})  # fmt: skip


def posterior_of(profile: Profile) -> Posterior:
    """Rebuild the belief that a profile holds."""
    priors = tuple(_prior(p) for p in profile.parameters)
    theta = np.array([p.value if p.exponent else np.log(p.value) for p in profile.parameters])
    seen = None
    if profile.points:
        ids = setting_ids_of(profile)
        features = Features(
            np.array([float(p.point.batch_size * p.point.draft_tokens) for p in profile.points]),
            np.array([float(p.context_tokens) for p in profile.points]),
            np.array([_kind(p.point.phase) for p in profile.points], dtype=np.intp),
            np.array([ids[p.point.setting.name] for p in profile.points], dtype=np.intp),
        )
        residual = np.log([p.point.time_ms / p.model_ms for p in profile.points])
        seen = Seen(
            features,
            residual,
            np.array([p.gradient for p in profile.points]),
            tuple(p.point.phase for p in profile.points),
            tuple(p.point.draft_tokens for p in profile.points),
        )
    return Posterior(priors, theta, np.array(profile.covariance), seen, profile.discrepancy.scale)


def setting_ids_of(profile: Profile) -> dict[str, int]:
    """Numbers of the settings of the points, as the smooth correction counts them."""
    return {name: i for i, name in enumerate(dict.fromkeys(p.point.setting.name for p in profile.points))}


def curves_of(profile: Profile) -> dict[str, CommCurve]:
    """Communication curves kept in a profile, by setting name."""
    return {c.setting.name: curve_from_points(c.setting, c.points, profile.num_ranks, c.reason) for c in profile.curves}


def settings_of(profile: Profile) -> dict[str, Setting]:
    """Settings that a profile knows, by name."""
    return {s.name: s for s in profile.settings}


def _prior(p: Parameter) -> Prior:
    return Prior(p.name, p.unit, p.prior_value, p.prior_spread, "", p.prior_source, p.exponent)


def _kind(phase: str) -> int:
    return {"decode": DECODE, "draft": DRAFT}.get(phase, VERIFY)


def _check(profile: Profile, path: Path) -> None:
    """Refuse a file whose parts do not belong together: edited by hand, or joined from two."""
    num, names = len(profile.parameters), [p.name for p in profile.parameters]
    square = len(profile.covariance) == num and all(len(row) == num for row in profile.covariance)
    missing = [p.name for p in FIXED if p.name not in names]
    curves = {c.setting.name for c in profile.curves if c.points}
    known = {"base", *curves, *settings_of(profile)}
    if not square or any(len(p.gradient) != num for p in profile.points):
        why = "its covariance or gradients do not match its parameters"
    elif len(set(names)) < num or missing:
        why = f"it lacks parameter {missing[0]}" if missing else "it has a parameter twice"
    elif min(np.linalg.eigvalsh(np.array(profile.covariance))) < -_NEGATIVE:
        why = "its covariance is not one"
    elif profile.num_ranks > 1 and profile.reference_setting not in curves:
        why = f"it has no curve of its reference setting '{profile.reference_setting}'"
    elif profile.best_setting not in known:
        why = f"its best setting '{profile.best_setting}' is none of its settings"
    else:
        return
    raise InputError(f"{path} is not a usable profile", why, "calibrate again")
