"""Read how a checkpoint stores its weights from ``quantization_config``: format by part, with the ignore lists."""

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any

from nccltune.errors import InputError
from nccltune.parse.hf_fields import Fields
from nccltune.schemas.model import Quantization, WeightFormat

# One representative module per part and family spelling; "{i}" is the layer.
_PREFIXES = ("model.layers.{i}.", "language_model.model.layers.{i}.", "model.language_model.layers.{i}.")
_MODULES: dict[str, tuple[str, ...]] = {
    "attention": ("self_attn.o_proj", "linear_attn.out_proj"),
    "dense": ("mlp.down_proj", "feed_forward.down_proj"),
    "shared_experts": (
        "mlp.shared_experts.down_proj",
        "mlp.shared_expert.down_proj",
        "feed_forward.shared_expert.down_proj",
    ),
    "routed_experts": (
        "mlp.experts.0.down_proj",
        "mlp.experts",
        "feed_forward.experts",
        "block_sparse_moe.experts.0.w2",
    ),
}


def quantization_from_config(fields: Fields, layers: Mapping[str, list[int]]) -> Quantization:
    """Return the weight format by part; notes about mixed parts go to ``fields.notes``.

    ``layers`` lists for each part the layers that have it, so that per-layer ignore lists can be counted.
    """
    config = fields.values.get("quantization_config")
    if config is None:
        return Quantization()
    if not isinstance(config, Mapping):
        raise InputError(f"quantization_config is {config!r}", "an object was expected", "correct the file")
    inner = config.get("quantization")  # ModelOpt nests it once more in hf_quant_config.json
    merged = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    stored = weight_format(merged, fields.notes)
    ignored = _ignored(merged)
    parts: dict[str, Any] = {
        part: _part_format(part, stored, ignored, numbers, fields.notes) for part, numbers in layers.items() if numbers
    }
    if str(merged.get("quant_method", "")).lower() == "mxfp4":  # converts expert tensors only
        parts = {part: stored if part == "routed_experts" else "bf16" for part in parts}
    if merged.get("lm_head") is True:
        parts["lm_head"] = stored
    return Quantization(**parts, kv_bytes_per_element=_kv_bytes(merged))


def weight_format(config: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    """Return the format of a quantized matrix; raises InputError for a method this version cannot price."""
    method = str(config.get("quant_method") or ("modelopt" if config.get("quant_algo") else "")).lower()
    readers: dict[str, Callable[[Mapping[str, Any], list[str]], WeightFormat]] = {
        "fp8": _fp8,
        "compressed-tensors": _compressed_tensors,
        "awq": _int_bits,
        "gptq": _int_bits,
        "auto-round": _int_bits,
        "mxfp4": lambda _config, _notes: "mxfp4-g32",
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "quark": _quark,
    }
    reader = readers.get(method)
    if reader is None:
        raise InputError(
            f"quantization method {method or '(none named)'!r} is not known",
            f"known: {', '.join(readers)}",
            "remove quantization_config from a copy of the file and set the formats in the TOML by hand",
        )
    return reader(config, notes)


def _fp8(config: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    block = config.get("weight_block_size")
    if not block:
        return "fp8"
    if block != [128, 128]:
        notes.append(f"fp8 blocks of {block} are priced as 128x128 (scales are far below 1% either way)")
    return "fp8-block128"


def _compressed_tensors(config: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    groups = config.get("config_groups")
    weights = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, Mapping) else [])
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)
    ]
    if not weights:
        raise InputError(
            "compressed-tensors without weights", "config_groups names no weight format", "correct the file"
        )
    formats = [_scheme(w, notes) for w in weights]
    if len(set(formats)) > 1:
        notes.append(f"several weight formats ({', '.join(formats)}); all parts are priced as {formats[0]}")
    return formats[0]


def _scheme(weights: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    bits, kind, group = weights.get("num_bits"), str(weights.get("type", "int")), weights.get("group_size")
    if bits == 8:
        if kind != "float":
            return "int8"
        return "fp8-block128" if weights.get("strategy") == "block" else "fp8"
    if bits == 4 and kind == "float":
        return "mxfp4-g32" if group == 32 else "nvfp4-g16"
    return _int4(bits, group, notes)


def _int_bits(config: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    bits = config.get("bits", config.get("w_bit"))
    if bits == 8:
        return "int8"
    return _int4(bits, config.get("group_size", config.get("q_group_size")), notes)


def _int4(bits: object, group: object, notes: list[str]) -> WeightFormat:
    if bits != 4:
        raise InputError(
            f"weights of {bits!r} bits are not known", "4 and 8 bits are", "set the formats in the TOML by hand"
        )
    if group == 32:
        return "int4-g32"
    if group != 128:
        notes.append(f"int4 groups of {group} are priced as groups of 128")
    return "int4-g128"


def _modelopt(config: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    algo = str(config.get("quant_algo", "")).upper()
    if algo.startswith("NVFP4") or algo == "W4A16_NVFP4":
        return "nvfp4-g16"
    if algo.startswith("FP8"):
        return "fp8-block128" if "PB" in algo else "fp8"
    if algo in ("W4A8_AWQ", "W4A16_AWQ"):
        return _int4(4, config.get("group_size", 128), notes)
    raise InputError(
        f"ModelOpt algorithm {algo or '(none named)'!r} is not known",
        "NVFP4, FP8 and W4A8_AWQ are",
        "set the formats in the TOML by hand",
    )


def _quark(config: Mapping[str, Any], notes: list[str]) -> WeightFormat:
    scheme = config.get("global_quant_config")
    weight = scheme.get("weight") if isinstance(scheme, Mapping) else None
    first = weight[0] if isinstance(weight, list) and weight else weight
    dtype = str(first.get("dtype", "")) if isinstance(first, Mapping) else ""
    if dtype.startswith("fp4"):
        return "mxfp4-g32"
    if dtype.startswith("fp8"):
        return "fp8"
    if dtype in ("int8", "uint8"):
        return "int8"
    return _int4(4 if dtype in ("int4", "uint4") else dtype, 128, notes)


def _kv_bytes(config: Mapping[str, Any]) -> float:
    scheme = config.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    return 1.0 if bits == 8 or str(config.get("kv_cache_quant_algo", "")).upper() == "FP8" else 2.0


def _ignored(config: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "exclude", "ignored_layers"):
        value = config.get(key)
        names += [str(v) for v in value] if isinstance(value, list) else []
    return names


def _part_format(part: str, stored: WeightFormat, ignored: list[str], numbers: list[int], notes: list[str]) -> str:
    skipped = sum(_is_ignored(part, i, ignored) for i in numbers)
    if 0 < skipped < len(numbers):
        notes.append(f"{part}: {skipped} of {len(numbers)} layers are not quantized; priced as the majority")
    return "bf16" if 2 * skipped > len(numbers) else stored


def _is_ignored(part: str, layer: int, ignored: list[str]) -> bool:
    names = [p.format(i=layer) + module for p in _PREFIXES for module in _MODULES[part]]
    return any(_matches(entry, name) for entry in ignored for name in names)


def _matches(entry: str, name: str) -> bool:
    """Match one ignore entry: ``re:`` expression, wildcard, or dotted name that is a run of the module's components."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], name) is not None
        except re.error:
            return False
    if "*" in entry:
        return fnmatch.fnmatchcase(name, entry) or fnmatch.fnmatchcase(name, f"{entry}.*")
    return f".{entry}." in f".{name}."
