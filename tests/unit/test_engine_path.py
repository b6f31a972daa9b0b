"""The rules of SGLang 0.5.14's all-reduce dispatch, one case per row of the rule table."""

import pytest

from nccltune.engine_path import EngineOptions, engine_allreduce_path, is_fused_architecture
from nccltune.units import MIB

KIMI, QWEN, LLAMA = "KimiK25ForConditionalGeneration", "Qwen3MoeForCausalLM", "LlamaForCausalLM"
NO_FUSION = EngineOptions(disable_flashinfer_fusion=True)
ALL_OFF = EngineOptions(disable_custom_all_reduce=True, disable_flashinfer_fusion=True)


@pytest.mark.parametrize(
    ("links", "gpus", "nodes", "capability", "model", "options", "path", "matters"),
    [
        # NVLink node: fused families on SM90 and SM10x, custom all-reduce otherwise
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(), "flashinfer-fusion", False),
        ("nvlink", 8, 1, "10.0", QWEN, EngineOptions(), "flashinfer-fusion", False),
        ("nvlink", 8, 1, "8.0", KIMI, EngineOptions(), "custom", False),
        ("nvlink", 8, 1, "9.0", LLAMA, EngineOptions(), "custom", False),
        ("nvlink", 8, 1, "9.0", None, EngineOptions(), "custom", False),
        ("nvlink", 8, 1, "9.0", KIMI, NO_FUSION, "custom", False),
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(flashinfer_available=False), "custom", False),
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(moe_a2a_backend=True), "custom", False),
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(disable_custom_all_reduce=True), "flashinfer-fusion", False),
        ("nvlink", 2, 1, "9.0", QWEN, ALL_OFF, "nccl", True),
        ("nvlink", 2, 1, "9.0", LLAMA, EngineOptions(p2p_works=False), "nccl", True),
        ("nvlink", 16, 1, "9.0", LLAMA, EngineOptions(), "nccl", True),
        ("nvlink", 3, 1, "9.0", LLAMA, EngineOptions(custom_all_reduce_v2=False), "nccl", True),
        # PCIe: the main case
        ("pcie", 8, 1, "12.0", KIMI, EngineOptions(), "nccl", True),
        ("pcie", 4, 1, "8.9", QWEN, EngineOptions(), "nccl", True),
        ("pcie", 2, 1, "12.0", KIMI, EngineOptions(p2p_works=True), "custom", False),
        ("pcie", 2, 1, "8.9", LLAMA, EngineOptions(p2p_works=False), "nccl", True),
        # several nodes, and the flags that overrule everything
        ("nvlink", 16, 2, "9.0", KIMI, EngineOptions(), "nccl", True),
        ("nvlink", 16, 2, "9.0", KIMI, EngineOptions(enable_mscclpp=True), "mscclpp", False),
        ("nvlink", 8, 1, "9.0", LLAMA, EngineOptions(enable_mscclpp=True), "mscclpp", False),
        ("nvlink", 4, 1, "9.0", LLAMA, EngineOptions(enable_mscclpp=True), "custom", False),
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(enable_deterministic_inference=True), "nccl", True),
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(enable_dp_attention=True), "nccl", True),
        ("nvlink", 8, 1, "9.0", KIMI, EngineOptions(enable_symm_mem=True), "nccl-symmetric", False),
        ("pcie", 8, 1, "12.0", KIMI, EngineOptions(enable_symm_mem=True), "nccl", True),
        ("nvlink", 4, 1, "9.0", LLAMA, EngineOptions(disable_custom_all_reduce=True, enable_torch_symm_mem=True), "torch-symm-mem", False),
        ("nvlink", 1, 1, "9.0", LLAMA, EngineOptions(), "none", False),
    ],
)  # fmt: skip
def test_rule_table(
    links: str,
    gpus: int,
    nodes: int,
    capability: str,
    model: str | None,
    options: EngineOptions,
    path: str,
    matters: bool,
) -> None:
    found = engine_allreduce_path(links, gpus, nodes, capability, model, options)  # type: ignore[arg-type]
    assert (found.path, found.nccl_settings_matter) == (path, matters)
    assert found.reason
    assert found.how_to_change


def test_size_limits() -> None:
    v2 = engine_allreduce_path("nvlink", 8, 1, "9.0", LLAMA)
    assert v2.carries(43_008)
    assert v2.carries(16 * MIB)
    assert not v2.carries(16 * MIB + 16)
    v1 = engine_allreduce_path("pcie", 2, options=EngineOptions(p2p_works=True))
    assert v1.max_bytes == 8 * MIB
    mscclpp = engine_allreduce_path("nvlink", 8, options=EngineOptions(enable_mscclpp=True))
    assert not mscclpp.carries(256)
    assert engine_allreduce_path("nvlink", 8, 1, "9.0", KIMI).max_tokens == 2048


def test_what_only_the_log_tells_is_not_certain() -> None:
    assert not engine_allreduce_path("nvlink", 8, 1, "9.0", KIMI).certain
    assert engine_allreduce_path("nvlink", 8, 1, "9.0", KIMI, EngineOptions(flashinfer_available=True)).certain
    assert not engine_allreduce_path("pcie", 2, 1, "12.0").certain
    assert not engine_allreduce_path("pcie", 8, 1, "9.0", KIMI).certain
    assert engine_allreduce_path("pcie", 8, 1, "12.0", KIMI).certain


@pytest.mark.parametrize(
    ("architecture", "fused"),
    [
        ("DeepseekV3ForCausalLM", True),
        ("DeepseekV32ForCausalLM", True),
        ("Glm4MoeForCausalLM", True),
        ("GptOssForCausalLM", True),
        ("Qwen3_5MoeForConditionalGeneration", True),
        ("LlamaForCausalLM", False),
        ("Llama4ForConditionalGeneration", False),
        ("MixtralForCausalLM", False),
        ("MiniMaxM2ForCausalLM", False),
        ("Qwen3ForCausalLM", False),
        ("", False),
        (None, False),
    ],
)
def test_fused_families(architecture: str | None, fused: bool) -> None:
    assert is_fused_architecture(architecture) is fused


def test_options_from_a_command_line() -> None:
    flags = [
        "--tp",
        "8",
        "--disable-custom-all-reduce",
        "--moe-a2a-backend=deepep",
        "--enforce-disable-flashinfer-allreduce-fusion",
    ]
    options = EngineOptions.from_flags(flags, p2p_works=True)
    assert options == EngineOptions(
        disable_custom_all_reduce=True, disable_flashinfer_fusion=True, moe_a2a_backend=True, p2p_works=True
    )
    assert EngineOptions.from_flags(["--moe-a2a-backend", "none"]) == EngineOptions()
    assert EngineOptions.from_flags(["--moe-a2a-backend"]) == EngineOptions()
