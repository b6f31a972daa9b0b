"""Terms, sums and intervals of the cost model, against sums worked out by hand."""

import numpy as np
import pytest
from flat_curve import flat

from nccltune import registry
from nccltune.costmodel.comm import average, guess, topology_comm
from nccltune.costmodel.compute import num_kernels
from nccltune.costmodel.forward import GROUPS, price, terms_of
from nccltune.costmodel.posterior import Posterior
from nccltune.costmodel.priors import all_priors
from nccltune.costmodel.quantization import with_quantization
from nccltune.costmodel.system import Rows, System
from nccltune.costmodel.terms import Term, add_up, evaluate
from nccltune.errors import InputError
from nccltune.schemas.setting import Setting


def kimi(curves=None, ranks=8, **changes):
    model = registry.load_model("kimi-k2.5")
    drafter = registry.load_drafter("kimi-k2.5-eagle3")
    return System(model, drafter, ranks, 1.792e12, curves or {"base": flat(20.0)}, "base", "measured", **changes)


def prior(system, settings=()):
    return Posterior.from_priors(all_priors(system.model, system.basis, system.inferred(settings)))


def test_a_term_is_its_base_times_powers_and_its_gradient_is_itself():
    term = Term("t", "compute", np.array([2.0, 4.0]), {"a": -1.0, "b": np.array([0.0, 1.0])}, 0)
    theta = {"a": np.log(2.0), "b": 0.5}
    assert evaluate(term, theta) == pytest.approx([1.0, 2.0 * np.exp(0.5)])
    total = add_up([term], ["a", "b"], theta, 2)
    step = 1e-6
    for i, name in enumerate(("a", "b")):
        moved = evaluate(term, {**theta, name: theta[name] + step})
        assert total.gradient[:, i] == pytest.approx((moved - total.value) / step, rel=1e-4)


def test_kernels_of_a_forward():
    # Qwen3-30B-A3B: 48 layers of 8 attention and 9 expert kernels
    assert num_kernels(registry.load_model("qwen3-30b-a3b")) == 48 * 17
    # Kimi-K2.5: 61 x 15 MLA, 1 dense layer of 4, 60 expert layers of 9 + 3
    assert num_kernels(registry.load_model("kimi-k2.5")) == 61 * 15 + 4 + 60 * 12


def test_communication_of_a_verify_by_hand():
    # 123 all-reduces of 20 us and half of one for the logits: 2.47 ms, whatever the tokens of a flat curve
    system = kimi()
    priced = price(system, Rows.make(1, [1, 3, 8], 1024, ["base"] * 3), prior(system), {})
    assert priced.groups["comm"].value == pytest.approx([2.47] * 3)


def test_weights_at_one_token_by_hand():
    # Kimi-K2.5, 8 ranks: 6.0 GB per rank at one token, of which attention 3.2 (costs at full bandwidth, no efficiency)
    system = kimi(skew=0.0)
    terms = {t.name: t for t in terms_of(system, Rows.make(1, 1, 1024, ["base"]))}
    weights = sum(float(t.base_ms[0]) for n, t in terms.items() if n.endswith("weights") and not n.startswith("draft"))
    assert weights * 1.792 == pytest.approx(6.0, rel=0.03)
    assert float(terms["attention weights"].base_ms[0]) * 1.792 == pytest.approx(3.2, rel=0.03)


def test_parts_add_up_to_the_cycle_and_plain_decode_has_no_draft():
    system = kimi()
    priced = price(system, Rows.make(1, [1, 2, 5], 1024, ["base"] * 3), prior(system), {})
    assert sum(priced.groups[g].value for g in GROUPS) == pytest.approx(priced.cycle.value)
    for group in ("draft", "host", "overhead"):
        assert priced.groups[group].value[0] == 0.0
        assert priced.groups[group].value[1] > 0.0


def test_verify_grows_with_draft_tokens_batch_and_context():
    system = kimi()
    for rows in (
        Rows.make(1, [1, 2, 3, 8], 1024, ["base"] * 4),
        Rows.make([1, 2, 16, 256], 1, 1024, ["base"] * 4),
        Rows.make(1, 3, [0, 1024, 32768, 131072], ["base"] * 4),
    ):
        assert np.all(np.diff(price(system, rows, prior(system), {}).verify.value) > 0)


def test_an_unmeasured_setting_is_wide_and_assumed():
    system = kimi()
    rows = Rows.make(1, 1, 1024, ["base", "other"])
    priced = price(system, rows, prior(system, ["other"]), {})
    part = priced.part("comm", priced.group_source("comm"))
    assert part.value[0] == pytest.approx(part.value[1])
    assert part.high[1] / part.value[1] > 2 > part.high[0] / part.value[0]
    assert priced.group_source("comm").tolist() == [1, 4]  # between two sizes of the curve; assumed


def test_one_rank_has_no_communication():
    system = System(registry.load_model("qwen3-30b-a3b"), None, 1, 4.8e12, {}, "base", "published")
    priced = price(system, Rows.make([1, 4], 3, 1024, ["base"] * 2), prior(system), {})
    assert np.all(priced.groups["comm"].value == 0)
    assert np.all(priced.cycle.value > 0)


def test_all_ranks_of_a_topology_have_a_curve():
    topology = registry.load_topology("rtx-pro-6000-x8")
    bases = {ranks: topology_comm(topology, ranks).basis for ranks in (1, 2, 4, 8, 16)}
    assert bases == {1: "published", 2: "published", 4: "published", 8: "published", 16: "analytic"}


def test_the_average_of_two_hosts_lies_between_them_and_its_interval_holds_both():
    mean = average([flat(20.0), flat(45.0)])
    estimate = mean.at([4096.0])
    assert float(estimate.value[0]) == pytest.approx(30.0)  # sqrt(20 x 45)
    assert estimate.low[0] <= 20.0
    assert estimate.high[0] >= 45.0


def test_a_guess_keeps_the_ratio_of_nccls_model():
    topology = registry.load_topology("rtx-pro-6000-x8")
    found = guess(
        topology, 8, Setting.make({"NCCL_PROTO": "Simple"}), flat(20.0, setting=Setting.make({"NCCL_PROTO": "LL"}))
    )
    estimate = found.at([14336.0])
    assert estimate.value[0] > 20.0  # Simple costs more per step than LL
    assert int(estimate.source[0]) == 3


@pytest.mark.parametrize(("text", "ratio"), [("int4", 1.0), ("bf16", 2 / 0.5625), ("fp8", 1.0002 / 0.5625)])
def test_quantisation_scales_the_expert_bytes(text, ratio):
    system = kimi()
    other = kimi()
    changed = System(with_quantization(other.model, text), other.drafter, 8, 1.792e12, other.curves, "base", "measured")
    pick = [
        next(float(t.base_ms[0]) for t in terms_of(s, Rows.make(1, 1, 0, ["base"])) if t.name == "expert weights")
        for s in (system, changed)
    ]
    assert pick[1] / pick[0] == pytest.approx(ratio, rel=1e-3)


def test_an_unknown_weight_format_is_refused():
    with pytest.raises(InputError, match="not a weight format"):
        with_quantization(registry.load_model("kimi-k2.5"), "int3")


def test_a_large_grid_agrees_with_single_rows():
    system = kimi()
    b, d = (x.ravel() for x in np.meshgrid(np.arange(1, 101), np.arange(1, 51)))
    many = price(system, Rows.make(b, d, 1024, ["base"] * b.size), prior(system), {}).verify.value
    for i in (0, 1, 17, 999, 4998):
        one = price(system, Rows.make(b[i], d[i], 1024, ["base"]), prior(system), {}).verify.value[0]
        assert many[i] == pytest.approx(one, rel=1e-4)
