"""What is believed about each parameter before any engine point: a median, a spread and where both come from.

Parameters are positive and live on a log scale (``ln value ~ normal``), except exponents. A calibration moves them;
what it cannot see stays here. None was chosen on the rows that the benchmarks score with no engine point.
"""

import math
from dataclasses import dataclass

from nccltune.schemas.model import Model, WeightFormat


@dataclass(frozen=True, slots=True)
class Prior:
    """One parameter. ``spread``: standard deviation of its logarithm, or of itself for an exponent."""

    name: str
    unit: str
    median: float
    spread: float
    meaning: str
    source: str
    exponent: bool = False

    @property
    def center(self) -> float:
        """Median on the scale of the fit."""
        return self.median if self.exponent else math.log(self.median)


_MOE_TABLES = "AIConfigurator 0.12 moe_perf tables, H200, t = a + b x experts (docs/model.md)"
_ASSUMED = "assumed"

# Fraction of the memory bandwidth that the expert kernels reach, by stored format: 4.0 of 4.8 TB/s (bf16 Triton) and
# 2.9 (int4 Marlin in SGLang) in those tables; 1.0 TB/s for mxfp4 and for int4 in another engine is why the spread of
# the 4-bit formats is wide. fp8 lies between and is assumed.
_EXPERT_EFFICIENCY: dict[WeightFormat, tuple[float, float]] = {
    "bf16": (0.80, 0.20),
    "fp8": (0.65, 0.30),
    "fp8-block128": (0.65, 0.30),
    "int8": (0.65, 0.30),
    "int4-g32": (0.60, 0.35),
    "int4-g128": (0.60, 0.35),
    "nvfp4-g16": (0.45, 0.45),
    "mxfp4-g32": (0.45, 0.45),
}

FIXED = (
    Prior("kernel_us", "us", 3.5, 0.25, "fixed cost of one kernel in a CUDA graph",
          f"{_MOE_TABLES}: a = 17.6 to 23 us for the 5 to 6 kernels of one expert layer"),
    Prior("attention_efficiency", "of memory bandwidth", 0.70, 0.20, "streaming of attention weights",
          "assumed: matrix-vector kernels reach 0.6 to 0.85"),
    Prior("dense_efficiency", "of memory bandwidth", 0.75, 0.20, "streaming of dense, shared-expert, router and head weights",
          "assumed: matrix-vector kernels reach 0.6 to 0.85"),
    Prior("kv_efficiency", "of memory bandwidth", 0.50, 0.50, "reading the KV cache", _ASSUMED),
    Prior("token_us", "us per token and layer", 0.30, 1.3, "work that grows with tokens whatever the weights",
          "assumed: activation traffic and routing; serving points also hold prefill interference"),
    Prior("forward_ms", "ms", 0.15, 0.7, "host and sampling time of one forward that nothing hides", _ASSUMED),
    Prior("expert_growth", "", 0.92, 0.15, "extra experts of a verify against as many independent tokens",
          "assumed: neighbouring tokens of one sequence share experts; independent tokens would be 1"),
    Prior("overhead_ms", "ms", 0.60, 1.5, "verify overhead at 2 draft tokens: what verify costs beyond a plain forward of as many tokens",
          "assumed: anything from nothing to several ms; only a verify or cycle point can tell"),
    Prior("overhead_exponent", "", 0.15, 0.40, "growth of the overhead with (draft tokens - 1)",
          "assumed: an uncovered CUDA graph or a host wait does not grow (0), a kernel run once per draft token does (1)", exponent=True),
    Prior("draft", "", 1.0, 0.40, "drafter forwards against their weights, kernels and all-reduces", _ASSUMED),
    Prior("cycle_ms", "ms", 0.20, 0.7, "sampling, tree building and host time of one cycle", _ASSUMED),
    Prior("served_ms", "ms", 0.10, 1.5, "served-round correction: what a served cycle costs beyond the sum of its parts",
          "assumed: eagle-harness reports served rounds far above the sum of isolated forwards at batch 64"),
)  # fmt: skip

# Spread of the communication scale and of its growth with size (exponent), by where the curve came from.
COMM_SPREAD: dict[str, tuple[float, float, str]] = {
    "measured": (0.05, 0.02, "in-forward run of this machine; a server differs a little"),
    "published": (0.25, 0.10, "another machine of this kind: 37, 56 and 85 us at 256 KB on three hosts with the same 8 GPUs"),
    "analytic": (0.40, 0.15, "no curve at all: latency and bandwidth of the links"),
}  # fmt: skip
COMM_PARAMETERS = ("comm", "comm_exponent")
_SETTING_SPREAD = (0.70, 0.20)


def expert_prior(model: Model) -> Prior:
    """Prior of the expert streaming efficiency for the model's stored format."""
    median, spread = _EXPERT_EFFICIENCY[model.quantization.routed_experts]
    return Prior("expert_efficiency", "of memory bandwidth", median, spread, "streaming of routed experts", _MOE_TABLES)


def comm_priors(basis: str) -> list[Prior]:
    """Priors of the scale and the size exponent of all communication, given how the curve was obtained."""
    scale, exponent, why = COMM_SPREAD[basis]
    return [
        Prior("comm", "", 1.0, scale, "served all-reduce against the curve at one token", why),
        Prior("comm_exponent", "", 0.0, exponent, "growth of that ratio with message size", why, exponent=True),
    ]


def setting_priors(setting: str) -> list[Prior]:
    """Priors of a setting without a curve of its own: a ratio to the reference curve and its growth with size."""
    why = "assumed: no curve of this setting was measured; engine points decide"
    scale, exponent = _SETTING_SPREAD
    return [
        Prior(setting_parameter(setting), "", 1.0, scale, f"all-reduce under '{setting}' against the reference curve", why),
        Prior(setting_exponent(setting), "", 0.0, exponent, "growth of that ratio with message size", why, exponent=True),
    ]  # fmt: skip


def setting_parameter(setting: str) -> str:
    """Name of the ratio parameter of a setting without a curve."""
    return f"setting:{setting}"


def setting_exponent(setting: str) -> str:
    """Name of the size exponent of a setting without a curve."""
    return f"setting_exponent:{setting}"


def all_priors(model: Model, basis: str, inferred_settings: list[str]) -> list[Prior]:
    """Every parameter of a model on a machine, in the order of the fit."""
    priors = [*FIXED, expert_prior(model), *comm_priors(basis)]
    return priors + [prior for setting in inferred_settings for prior in setting_priors(setting)]
