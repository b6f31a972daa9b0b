"""From a grid to an ordered list of settings and sizes, with what was dropped and why, and a time estimate. Pure."""

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nccltune.errors import InputError
from nccltune.knobs import ALGOS, BASES, NAMED, PROTOS, library_part
from nccltune.schemas.measurement import ELEMENT_BYTES, Case, Timing
from nccltune.schemas.setting import BASE, Setting

# Seconds, medians of the probes on 2x H200 (docs/measuring.md): start of a process group with torch and CUDA, a
# private copy of libnccl with its first communicator, a further communicator, one case.
START_S = 12.0
LIBRARY_S = 0.65
COMMUNICATOR_S = 0.25
CASE_S = {"in-forward": 0.09, "back-to-back": 0.05, "eager": 0.05}
GLOO_CASE_S = 0.5
NCCL_TESTS_CASE_S = 2.0
GROUP_S = 15.0  # a whole process group per library-scope setting (back end torch)

DEFAULT_CHANNELS = ("default", "1", "2", "4", "8", "16", "32")


@dataclass(frozen=True, slots=True)
class Grid:
    """Axes of a scan; an empty axis is not varied. ``default`` on an axis leaves its variable unset."""

    protos: tuple[str, ...] = ()
    algos: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    buffsizes: tuple[str, ...] = ()
    nthreads: tuple[str, ...] = ()
    p2p_levels: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    named: tuple[Setting, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when nothing was asked for."""
        return self == Grid()


def default_grid() -> Grid:
    """Every protocol and ring/tree at NCCL's own and at fixed channel counts, and the seed's hand-tuned set."""
    return Grid(protos=PROTOS, algos=("Ring", "Tree"), channels=DEFAULT_CHANNELS, named=(NAMED["seed"],))


@dataclass(frozen=True)
class Plan:
    """What a scan measures. ``settings`` starts with the base; ``dropped`` pairs a setting with the reason."""

    settings: list[Setting]
    size_bytes: list[int]
    timings: list[Timing]
    num_ranks: int
    dtype: str
    base: str
    backend: str
    seed: int = 0
    base_env: dict[str, str] = field(default_factory=dict)
    """The variables of the base environment, extras of the user included."""
    dropped: list[tuple[Setting, str]] = field(default_factory=list)

    @property
    def num_cases(self) -> int:
        """Settings x sizes x timings."""
        return len(self.settings) * len(self.size_bytes) * len(self.timings)

    @property
    def id(self) -> str:
        """Hash of everything that shapes the measurements; a resumed run must have the same."""
        parts = [
            self.backend,
            self.base,
            repr(sorted(self.base_env.items())),
            str(self.num_ranks),
            self.dtype,
            repr(self.size_bytes),
            repr(self.timings),
        ]
        text = "|".join(parts + sorted(setting.id for setting in self.settings))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def cases(self) -> Iterator[Case]:
        """Every case, in the order of settings, timings and sizes."""
        for setting in self.settings:
            for timing in self.timings:
                for size in self.size_bytes:
                    yield self.case(setting, size, timing)

    def case(self, setting: Setting, size_bytes: int, timing: Timing) -> Case:
        """The case of one point."""
        return Case.model_validate(
            {
                "setting": setting, "size_bytes": size_bytes, "timing": timing, "num_ranks": self.num_ranks,
                "dtype": self.dtype, "base": self.base, "backend": self.backend,
            }
        )  # fmt: skip

    def groups(self) -> list[tuple[dict[str, str], list[Setting]]]:
        """Settings by the variables that need their own copy of libnccl, both levels shuffled by the seed.

        The base's group comes first. Within a group the settings share a library copy, because they differ only in
        what every communicator init reads again.
        """
        by_library: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
        for setting in self.settings:
            by_library.setdefault(tuple(sorted(library_part(setting.env).items())), []).append(setting)
        rng = random.Random(self.seed)
        keys = list(by_library)
        first = () if () in by_library else keys[0]
        rest = [key for key in keys if key != first]
        rng.shuffle(rest)
        result = []
        for key in [first, *rest]:
            members = by_library[key]
            ordered = [s for s in members if s.id == BASE.id]
            others = [s for s in members if s.id != BASE.id]
            rng.shuffle(others)
            result.append((dict(key), ordered + others))
        return result

    def estimate_s(self) -> float:
        """Rough seconds for the whole plan on the probed machine, before any case is shared."""
        per_case = sum(CASE_S[timing] for timing in self.timings)
        points = len(self.settings) * len(self.size_bytes)
        if self.backend == "nccl":
            return START_S + len(self.groups()) * LIBRARY_S + len(self.settings) * COMMUNICATOR_S + points * per_case
        if self.backend == "nccl-tests":
            return points * NCCL_TESTS_CASE_S
        if self.backend == "torch":
            return len(self.groups()) * GROUP_S + len(self.settings) * COMMUNICATOR_S + points * per_case
        return START_S / 2 + len(self.size_bytes) * len(self.timings) * GLOO_CASE_S


def make_plan(
    grid: Grid,
    *,
    size_bytes: list[int],
    timings: list[Timing],
    num_ranks: int,
    dtype: str,
    base: str,
    backend: str,
    seed: int = 0,
    base_extra: dict[str, str] | None = None,
) -> Plan:
    """Multiply the axes out; invalid combinations are dropped with a reason, repeats are merged."""
    if base not in BASES:
        raise InputError(
            f"no base is called '{base}'", f"known: {', '.join(BASES)}", "use --base sglang or --base nccl"
        )
    if not size_bytes:
        raise InputError(
            "there is no size to measure",
            "neither --tokens nor --sizes gave one",
            "add --tokens 1-16 or --sizes 14336,64K",
        )
    element = ELEMENT_BYTES[dtype]
    odd = [size for size in size_bytes if size % element]
    if odd:
        raise InputError(
            f"size {odd[0]} is not a whole number of {dtype} elements",
            f"one element is {element} bytes",
            f"use multiples of {element}",
        )
    settings: dict[str, Setting] = {BASE.id: BASE}
    dropped: list[tuple[Setting, str]] = []
    for setting in [*grid.named, *_product(grid)]:
        reason = invalid_reason(setting.env)
        if reason:
            dropped.append((setting, reason))
        else:
            settings.setdefault(setting.id, setting)
    return Plan(
        settings=_unique_names(list(settings.values())), size_bytes=sorted(set(size_bytes)), timings=timings, num_ranks=num_ranks,
        dtype=dtype, base=base, backend=backend, seed=seed, dropped=dropped,
        base_env={**BASES[base], **(base_extra or {})},
    )  # fmt: skip


def invalid_reason(env: dict[str, str]) -> str | None:
    """Why a combination cannot work for an all-reduce in one node, or None (nccl.md A3: valid pairs)."""
    algo, proto = env.get("NCCL_ALGO", ""), env.get("NCCL_PROTO", "")
    if algo.lower() == "pat":
        return "PAT does not do all-reduce"
    if algo.lower() in ("nvls", "nvlstree", "collnetdirect", "collnetchain") and proto and proto.lower() != "simple":
        return f"{algo} runs with Simple only"
    low, high = env.get("NCCL_MIN_NCHANNELS"), env.get("NCCL_MAX_NCHANNELS")
    if low and high and low.isdigit() and high.isdigit() and int(low) > int(high):
        return f"MIN_NCHANNELS {low} is above MAX_NCHANNELS {high}"
    return None


def _product(grid: Grid) -> list[Setting]:
    axes: list[list[dict[str, str]]] = []
    simple = (
        ("NCCL_PROTO", _names(grid.protos, PROTOS, "--proto")),
        ("NCCL_ALGO", _names(grid.algos, ALGOS, "--algo")),
        ("NCCL_BUFFSIZE", grid.buffsizes),
        ("NCCL_NTHREADS", grid.nthreads),
        ("NCCL_P2P_LEVEL", grid.p2p_levels),
        *grid.extra,
    )
    for name, values in simple:
        if values:
            axes.append([{} if value == "default" else {name: value} for value in values])
    if grid.channels:
        axes.append(
            [{} if c == "default" else {"NCCL_MIN_NCHANNELS": c, "NCCL_MAX_NCHANNELS": c} for c in grid.channels]
        )
    settings = []
    for combination in itertools.product(*axes) if axes else []:
        env = {key: value for part in combination for key, value in part.items()}
        if env:
            settings.append(Setting.make(env))
    return settings


def _names(values: tuple[str, ...], known: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """Spell names as NCCL does; a list form with ^ , : or ; is passed on as it is."""
    spelled = {name.lower(): name for name in known}
    result = []
    for value in values:
        if value != "default" and value.lower() not in spelled and not any(c in value for c in "^,:;"):
            raise InputError(
                f"{flag} {value}: NCCL has no such name", f"names are {', '.join(known)}", "correct the name"
            )
        result.append(spelled.get(value.lower(), value))
    return tuple(result)


def unique_names(plan: Plan) -> Plan:
    """The plan with settings that never share a name."""
    return replace(plan, settings=_unique_names(plan.settings))


def _unique_names(settings: list[Setting]) -> list[Setting]:
    """Two settings never share a name: the later one is called by its variables."""
    seen: set[str] = set()
    result = []
    for setting in settings:
        if setting.name in seen:
            setting = setting.model_copy(update={"name": setting.id})
        seen.add(setting.name)
        result.append(setting)
    return result
