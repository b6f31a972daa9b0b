"""The plan: what is multiplied out, dropped and grouped."""

import pytest

from nccltune.errors import InputError
from nccltune.knobs import NAMED
from nccltune.plan import Grid, default_grid, make_plan


def plan(grid: Grid, **fields):
    defaults = {
        "size_bytes": [14336],
        "timings": ["in-forward"],
        "num_ranks": 2,
        "dtype": "bfloat16",
        "base": "sglang",
        "backend": "nccl",
    }
    return make_plan(grid, **{**defaults, **fields})


def test_axes_multiply_and_the_base_comes_first():
    p = plan(Grid(protos=("LL", "Simple"), channels=("default", "8")), size_bytes=[14336, 28672])
    # base + LL, LL 8ch, Simple, Simple 8ch
    assert [s.name for s in p.settings] == ["base", "LL", "LL 8ch", "Simple", "Simple 8ch"]
    assert p.num_cases == 5 * 2
    assert p.settings[2].env == {"NCCL_MAX_NCHANNELS": "8", "NCCL_MIN_NCHANNELS": "8", "NCCL_PROTO": "LL"}


def test_default_grid_holds_the_seed_by_name_and_at_least_forty_settings():
    p = plan(default_grid())
    assert len(p.settings) >= 40
    assert NAMED["seed"] in p.settings


def test_invalid_combinations_are_dropped_with_a_reason():
    p = plan(Grid(protos=("LL", "Simple"), algos=("NVLS", "PAT")))
    assert {s.name for s in p.settings} == {"base", "Simple NVLS"}
    assert {reason for _, reason in p.dropped} == {"NVLS runs with Simple only", "PAT does not do all-reduce"}


def test_groups_share_a_library_copy_only_when_nothing_read_once_differs():
    p = plan(Grid(protos=("LL", "Simple"), algos=("Ring",), channels=("default", "8"), named=(NAMED["seed"],)))
    groups = {tuple(library): [s.name for s in members] for library, members in p.groups()}
    assert groups[()][0] == "base"
    assert set(groups[()]) == {"base", "LL Ring", "Simple Ring"}
    assert set(groups[("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS")]) == {"LL Ring 8ch", "Simple Ring 8ch"}
    assert ["seed"] in groups.values()


def test_plan_id_ignores_order_and_sees_every_input():
    a = plan(Grid(protos=("LL", "Simple")))
    assert a.id == plan(Grid(protos=("Simple", "LL")), seed=5).id
    for other in (
        plan(Grid(protos=("LL",))),
        plan(Grid(protos=("LL", "Simple")), size_bytes=[28672]),
        plan(Grid(protos=("LL", "Simple")), num_ranks=4),
        plan(Grid(protos=("LL", "Simple")), base="nccl"),
        plan(Grid(protos=("LL", "Simple")), base_extra={"NCCL_P2P_DISABLE": "1"}),
    ):
        assert other.id != a.id


def test_case_ids_are_stable_and_distinct():
    p = plan(Grid(protos=("LL",)), size_bytes=[14336, 28672])
    ids = {p.case(s, size, t).id for s in p.settings for size in p.size_bytes for t in ("in-forward", "eager")}
    assert len(ids) == 8
    assert p.case(p.settings[0], 14336, "eager").id == p.case(p.settings[0], 14336, "eager").id


@pytest.mark.parametrize(
    ("grid", "fields"),
    [
        (Grid(protos=("LL9",)), {}),
        (Grid(algos=("Rinng",)), {}),
        (Grid(), {"size_bytes": []}),
        (Grid(), {"size_bytes": [7]}),
        (Grid(), {"base": "vllm"}),
    ],
)
def test_bad_input_is_one_clear_error(grid, fields):
    with pytest.raises(InputError) as error:
        plan(grid, **fields)
    assert error.value.do


def test_two_settings_never_share_a_name():
    p = plan(Grid(extra=(("NCCL_X", ("a",)),), named=(NAMED["seed"].model_copy(update={"name": "X=a"}),)))
    assert len({s.name for s in p.settings}) == len(p.settings)
