"""Which all-reduce SGLang uses for a message, and so whether NCCL settings reach it at all. Pure rules, no machine access.

Read from SGLang 0.5.14: distributed/parallel_state.py (order), device_communicators/custom_all_reduce*.py (limits),
layers/communicator.py and server_args.py (FlashInfer fusion). Other versions may differ: the answer names its version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nccltune.units import MIB

ENGINE = "SGLang 0.5.14"
Path = Literal["none", "nccl", "nccl-symmetric", "custom", "flashinfer-fusion", "mscclpp", "torch-symm-mem"]

# Architectures (by Hugging Face name, without what follows) for which SGLang turns the FlashInfer fusion on by itself.
_FUSED = ("deepseekv3", "glm4moe", "gptoss", "mistrallarge3", "qwen3moe", "qwen3vlmoe", "qwen3next", "qwen35", "kimik25",
          "nemotronh")  # fmt: skip
_FUSED_MAX_TOKENS = 2048
_CUSTOM_V2_MAX = 16 * MIB
_CUSTOM_V1_MAX = 8 * MIB
_MSCCLPP_MIN, _MSCCLPP_MAX = 512, 8 * MIB
# torch symmetric memory: strictly below these, by world size.
_TORCH_SYMM_MAX = {2: 64 * MIB, 4: 64 * MIB, 6: 128 * MIB, 8: 128 * MIB}

_NCCL_ALWAYS = "the gather of logits always goes through NCCL"
_FORCE_NCCL = "--disable-custom-all-reduce --enforce-disable-flashinfer-allreduce-fusion makes NCCL carry them all"
_AS_IS = "nothing: NCCL carries these all-reduces already"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """SGLang options and facts that decide the path. ``None`` means not known."""

    disable_custom_all_reduce: bool = False
    disable_flashinfer_fusion: bool = False
    enable_symm_mem: bool = False
    enable_mscclpp: bool = False
    enable_torch_symm_mem: bool = False
    enable_dp_attention: bool = False
    enable_deterministic_inference: bool = False
    moe_a2a_backend: bool = False
    custom_all_reduce_v2: bool = True
    """False with SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=0."""
    p2p_works: bool | None = None
    flashinfer_available: bool | None = None

    @classmethod
    def from_flags(cls, flags: Sequence[str], **facts: Any) -> "EngineOptions":
        """Read the options from an SGLang command line; flags that do not decide the path are passed over."""
        given = [flag.split("=", 1)[0] for flag in flags]
        found = {name: True for flag, name in _FLAGS.items() if flag in given}
        backend = _value(flags, "--moe-a2a-backend")
        if backend is not None and backend != "none":
            found["moe_a2a_backend"] = True
        return cls(**{**found, **facts})


_FLAGS = {
    "--disable-custom-all-reduce": "disable_custom_all_reduce",
    "--enforce-disable-flashinfer-allreduce-fusion": "disable_flashinfer_fusion",
    "--enable-symm-mem": "enable_symm_mem",
    "--enable-mscclpp": "enable_mscclpp",
    "--enable-torch-symm-mem": "enable_torch_symm_mem",
    "--enable-dp-attention": "enable_dp_attention",
    "--enable-deterministic-inference": "enable_deterministic_inference",
}


@dataclass(frozen=True, slots=True)
class EnginePath:
    """Who carries the target model's all-reduces at decode and verify sizes."""

    path: Path
    nccl_settings_matter: bool
    reason: str
    how_to_change: str
    certain: bool = True
    """False where the answer hangs on something that only the server log tells."""
    min_bytes: int = 0
    max_bytes: int | None = None
    """Largest message that this path takes; NCCL carries larger ones. None: no limit."""
    max_tokens: int | None = None
    """The same limit where the engine counts tokens."""

    def carries(self, size_bytes: int) -> bool:
        """Tell whether this path takes an all-reduce of ``size_bytes``."""
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object, with the engine they were read from."""
        return {
            "engine": ENGINE,
            "path": self.path,
            "nccl_settings_matter": self.nccl_settings_matter,
            "certain": self.certain,
            "reason": self.reason,
            "how_to_change": self.how_to_change,
            "min_bytes": self.min_bytes,
            "max_bytes": self.max_bytes,
            "max_tokens": self.max_tokens,
        }


def engine_allreduce_path(
    links_kind: Literal["nvlink", "pcie"],
    num_gpus: int,
    num_nodes: int = 1,
    compute_capability: str | None = None,
    model_architecture: str | None = None,
    options: EngineOptions | None = None,
) -> EnginePath:
    """Tell which all-reduce SGLang uses for the target's decode and verify steps.

    ``links_kind`` is ``nvlink`` only where every pair of GPUs is joined by NVLink; ``num_gpus`` is the tensor-parallel
    size over all nodes; ``compute_capability`` is written ``9.0``; ``model_architecture`` is the Hugging Face name.
    """
    options = options or EngineOptions()
    nvlink = links_kind == "nvlink"
    return (
        _forced(nvlink, num_gpus, num_nodes, options)
        or _several_nodes(num_gpus, num_nodes, compute_capability, model_architecture, options)
        or _fusion(nvlink, compute_capability, model_architecture, options)
        or _mscclpp(num_gpus, options)
        or _custom(nvlink, num_gpus, options)
        or _torch_symm_mem(nvlink, num_gpus, compute_capability, options)
        or _nccl(nvlink, num_gpus, compute_capability, model_architecture, options)
    )


def is_fused_architecture(model_architecture: str | None) -> bool:
    """Tell whether SGLang turns the FlashInfer all-reduce fusion on by itself for this architecture."""
    name = (model_architecture or "").lower().replace("_", "").replace("-", "")
    return name.startswith(_FUSED)


def _forced(nvlink: bool, num_gpus: int, num_nodes: int, options: EngineOptions) -> EnginePath | None:
    if num_gpus <= 1 and num_nodes <= 1:
        return EnginePath("none", False, "one GPU has no all-reduce", "use --tp 2 or more")
    if options.enable_deterministic_inference:
        return EnginePath(
            "nccl",
            True,
            "--enable-deterministic-inference turns the custom all-reduce off and sets NCCL_ALGO=allreduce:tree itself, over what is exported",
            "leave that flag out to choose the algorithm",
        )
    if options.enable_symm_mem:
        if nvlink and num_nodes <= 1:
            return EnginePath(
                "nccl-symmetric",
                False,
                "--enable-symm-mem uses NCCL's symmetric kernels, which are chosen before NCCL_ALGO and NCCL_PROTO are looked at",
                "leave --enable-symm-mem out",
            )
        return EnginePath(
            "nccl",
            True,
            "--enable-symm-mem goes through NCCL, and its symmetric kernels need NVLink everywhere",
            _AS_IS,
        )
    if options.enable_dp_attention:
        return EnginePath(
            "nccl",
            True,
            "--enable-dp-attention sends all-gather and reduce-scatter of the attention group through NCCL",
            _AS_IS,
        )
    return None


def _several_nodes(
    num_gpus: int, num_nodes: int, capability: str | None, model: str | None, options: EngineOptions
) -> EnginePath | None:
    if num_nodes <= 1:
        return None
    mscclpp = _mscclpp(num_gpus, options)
    if mscclpp is not None:
        return mscclpp
    maybe_fused = _sm(capability) == 10 and is_fused_architecture(model) and not _fusion_off(options)
    reason = "across nodes the custom all-reduce is refused, so NCCL carries it"
    if maybe_fused:
        reason += "; on a GB200-class NVLink domain the FlashInfer fusion may take it instead"
    return EnginePath("nccl", True, reason, _AS_IS, certain=not maybe_fused)


def _fusion(nvlink: bool, capability: str | None, model: str | None, options: EngineOptions) -> EnginePath | None:
    if not nvlink or _fusion_off(options) or not is_fused_architecture(model) or _sm(capability) not in (9, 10):
        return None
    return EnginePath(
        "flashinfer-fusion",
        False,
        "the FlashInfer all-reduce and norm fusion is on by default for this model and GPU: it takes all but the embedding's and the last layer's all-reduce "
        f"up to {_FUSED_MAX_TOKENS} tokens; {_NCCL_ALWAYS}",
        _FORCE_NCCL,
        certain=options.flashinfer_available is True,
        max_tokens=_FUSED_MAX_TOKENS,
    )


def _mscclpp(num_gpus: int, options: EngineOptions) -> EnginePath | None:
    if not options.enable_mscclpp or num_gpus not in (8, 16, 32):
        return None
    return EnginePath(
        "mscclpp",
        False,
        "--enable-mscclpp takes messages from 512 B to 8 MiB",
        "leave --enable-mscclpp out",
        min_bytes=_MSCCLPP_MIN,
        max_bytes=_MSCCLPP_MAX,
    )


def _custom(nvlink: bool, num_gpus: int, options: EngineOptions) -> EnginePath | None:
    if options.disable_custom_all_reduce or options.p2p_works is False:
        return None
    if nvlink and options.custom_all_reduce_v2 and 2 <= num_gpus <= 8:
        return EnginePath(
            "custom",
            False,
            f"SGLang's own all-reduce takes messages up to 16 MiB where all GPUs are joined by NVLink; {_NCCL_ALWAYS}",
            _FORCE_NCCL,
            max_bytes=_CUSTOM_V2_MAX,
        )
    if num_gpus == 2 or (nvlink and num_gpus in (4, 6, 8)):
        where = "where all GPUs are joined by NVLink" if nvlink else "on exactly two PCIe GPUs whose peer access works"
        return EnginePath(
            "custom",
            False,
            f"SGLang's own all-reduce takes messages up to 8 MiB {where}; {_NCCL_ALWAYS}",
            _FORCE_NCCL,
            certain=nvlink or options.p2p_works is True,
            max_bytes=_CUSTOM_V1_MAX,
        )
    return None


def _torch_symm_mem(nvlink: bool, num_gpus: int, capability: str | None, options: EngineOptions) -> EnginePath | None:
    limit = _TORCH_SYMM_MAX.get(num_gpus)
    if not options.enable_torch_symm_mem or not nvlink or limit is None or _sm(capability) not in (9, 10):
        return None
    return EnginePath(
        "torch-symm-mem",
        False,
        f"--enable-torch-symm-mem takes bf16 messages below {limit // MIB} MiB, if the driver offers multicast (the server log says so when it does not)",
        "leave --enable-torch-symm-mem out",
        certain=False,
        max_bytes=limit - 1,
    )


def _nccl(nvlink: bool, num_gpus: int, capability: str | None, model: str | None, options: EngineOptions) -> EnginePath:
    if options.disable_custom_all_reduce:
        reason = "the custom all-reduce is switched off, so NCCL carries it"
    elif options.p2p_works is False:
        reason = "the custom all-reduce needs peer access between the GPUs, which is not available here"
    elif nvlink:
        reason = f"the custom all-reduce does not support {num_gpus} ranks"
    else:
        reason = "the custom all-reduce is refused on more than two PCIe GPUs"
    maybe_fused = is_fused_architecture(model) and _sm(capability) in (9, 10) and not _fusion_off(options)
    if maybe_fused and not nvlink:
        reason += "; the FlashInfer fusion may still be on for this model: see the server log"
    return EnginePath("nccl", True, reason, _AS_IS, certain=not (maybe_fused and not nvlink))


def _fusion_off(options: EngineOptions) -> bool:
    return (
        options.disable_flashinfer_fusion
        or options.flashinfer_available is False
        or options.enable_dp_attention
        or options.moe_a2a_backend
    )


def _sm(capability: str | None) -> int | None:
    """Major compute capability: ``9.0`` -> 9."""
    major = (capability or "").split(".", 1)[0]
    return int(major) if major.isdigit() else None


def _value(flags: Sequence[str], name: str) -> str | None:
    for position, flag in enumerate(flags):
        if flag == name:
            return flags[position + 1] if position + 1 < len(flags) else None
        if flag.startswith(f"{name}="):
            return flag.split("=", 1)[1]
    return None
