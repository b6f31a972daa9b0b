"""Draft trees: which triples exist, and accept lengths worked out by hand."""

import numpy as np
import pytest

from nccltune import api
from nccltune.costmodel.acceptance_input import parse_tree_rates, resolve_acceptance
from nccltune.costmodel.tree import Shape, check_shape, pool_size, tree_acceptance
from nccltune.errors import InputError


def test_pool_of_candidates():
    assert pool_size(3, 4) == 4 + 2 * 16
    assert pool_size(1, 8) == 8


def test_accept_length_by_hand():
    # rates 0.6, 0.2 at position 1 and 0.5, 0.1 at position 2. Paths: 0.6, 0.2, 0.6x0.5 = 0.3, 0.2x0.5 = 0.1,
    # 0.6x0.1 = 0.06, 0.2x0.1 = 0.02. Best first: 0.6 0.3 0.2 0.1 0.06 0.02
    found = tree_acceptance([[0.6, 0.2], [0.5, 0.1]], Shape(2, 2), "test")
    assert found.accept_length([0, 1, 2, 3, 6]).value == pytest.approx([1.0, 1.6, 1.9, 2.1, 2.28])


def test_a_tree_of_one_candidate_is_a_chain():
    # survival 0.6, 0.6 x 0.5 = 0.3
    found = tree_acceptance([[0.6], [0.5]], Shape(2, 2), "test")
    assert found.accept_length([1, 2]).value == pytest.approx([1.6, 1.9])


def test_accept_length_never_exceeds_the_depth():
    found = tree_acceptance([[1.0], [1.0]], Shape(4, 2), "test").accept_length(np.arange(10))
    assert found.value.max() == found.high.max() == 3.0


@pytest.mark.parametrize(
    ("shape", "widths", "says"),
    [
        (Shape(1, 2), [4], "do not give 4"),
        (Shape(4, None), [4], "number of steps"),
        (Shape(4, 3), [38], "do not exist"),
        (Shape(0, 3), [4], "topk 0"),
    ],
)
def test_impossible_triples_are_refused(shape, widths, says):
    with pytest.raises(InputError, match=says):
        check_shape(shape, widths)


def test_possible_triples():
    assert check_shape(Shape(1, 3), [1, 4]) == []
    assert check_shape(Shape(4, 3), [37])[0].startswith("topk above 1")
    assert any("never verified" in w for w in check_shape(Shape(4, 5), [4]))


@pytest.mark.parametrize("rates", [[[0.8, 0.3]], [[0.1, 0.2]], [[-0.1]], [[float("nan")]], [[]]])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(InputError):
        tree_acceptance(rates, Shape(2, 1), "test")


def test_a_tree_is_not_extrapolated():
    with pytest.raises(InputError, match="do not cover"):
        tree_acceptance([[0.6, 0.2]], Shape(2, 3), "test")


def test_a_mean_length_says_nothing_about_a_tree():
    with pytest.raises(InputError, match="nothing about a tree"):
        resolve_acceptance(accept_length=2.0, draft_tokens=[8], shape=Shape(4, 3))
    with pytest.raises(InputError, match="belong to a tree"):
        resolve_acceptance(tree_rates=[[0.6, 0.1]], draft_tokens=[3])


def test_rates_by_rank_are_read():
    assert parse_tree_rates("0.6/0.15,0.5/12%") == [[0.6, 0.15], [0.5, pytest.approx(0.12)]]


def test_a_tree_costs_its_verify_width_and_its_own_steps():
    tree = api.predict([8], topk=4, num_steps=3, tree_rates=[[0.6, 0.15], [0.5, 0.1], [0.5, 0.1]])
    chain = api.predict([8])
    row, same_width = tree.rows[1], chain.rows[1]
    assert (row.num_steps, row.topk, row.draft_tokens) == (3, 4, 8)
    assert row.verify_ms.value == pytest.approx(same_width.verify_ms.value)
    assert row.draft_ms.value < same_width.draft_ms.value  # 3 steps against 7
    assert tree.adaptive_config is None  # SGLang's adaptive speculation is for chains
    assert api.predict([8], topk=4, num_steps=3).rows[1].tokens_per_s is None
