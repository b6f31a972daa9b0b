"""What-if weight formats: the same architecture with its experts, or everything, stored differently."""

from typing import get_args

from nccltune.errors import InputError
from nccltune.schemas.model import Model, WeightFormat

# Names that people and benchmark tables use. Four-bit checkpoints keep all but the experts in bf16.
_ALIASES: dict[str, WeightFormat] = {
    "fp8": "fp8-block128",
    "int4": "int4-g32",
    "nvfp4": "nvfp4-g16",
    "fp4": "nvfp4-g16",
    "mxfp4": "mxfp4-g32",
    "fp16": "bf16",
    "bfloat16": "bf16",
}
_FOUR_BIT = ("int4-g32", "int4-g128", "nvfp4-g16", "mxfp4-g32")


def with_quantization(model: Model, text: str) -> Model:
    """Return the model with weights stored as ``text``: 4-bit for experts only (dense models: their MLP), else all linear parts."""
    name = text.strip().lower()
    fmt = _ALIASES.get(name, name)
    if fmt not in get_args(WeightFormat):
        raise InputError(
            f"'{text}' is not a weight format",
            f"known: {', '.join([*get_args(WeightFormat), *_ALIASES])}",
            "give one of these",
        )
    if fmt in _FOUR_BIT:
        parts = ["routed_experts"] if model.moe else ["dense"]
        changed = dict.fromkeys(("attention", "dense", "shared_experts"), "bf16") | dict.fromkeys(parts, fmt)
    else:
        changed = dict.fromkeys(("attention", "dense", "shared_experts", "routed_experts"), fmt)
    quantization = model.quantization.model_validate(model.quantization.model_dump() | changed)
    return model.model_copy(update={"quantization": quantization})
