"""Which layers share a block table."""

import pytest

from kvcache.errors import UnsupportedLayersError
from kvcache.grouping import group_layers
from kvcache.specs import MLASpec
from tests.kvcache.pools import chunked, full, mamba, sliding


def shape_of(groups):
    """(kind, layers, padding layers) of each group."""
    return [(group.spec.kind, len(group.layers), group.num_padding_layers) for group in groups]


@pytest.mark.parametrize(
    ("counts", "group_sizes", "num_padding"),
    [
        pytest.param((52, 10), [9, 9, 9, 9, 8, 8, 10], 8, id="gemma-3-27b"),
        pytest.param((29, 5), [5, 5, 5, 5, 5, 4, 5], 1, id="gemma-3-4b"),
        pytest.param((12, 12), [12, 12], 0, id="gpt-oss-20b"),
        pytest.param((18, 19), [18, 19], 1, id="gpt-oss-120b with a drafter"),
        pytest.param((30, 20), [15, 15, 20], 10, id="exactly 1.5 times as many"),
        pytest.param((14, 20), [14, 20], 6, id="just below 1.5 times"),
        pytest.param((16, 10), [8, 8, 10], 4, id="just above 1.5 times"),
        pytest.param((36, 12), [12, 12, 12, 12], 0, id="llama-4-scout"),
        pytest.param((69, 24), [23, 23, 23, 24], 3, id="kimi-k3"),
        pytest.param((48, 17), [16, 16, 16, 17], 3, id="qwen3.6-27b with a drafter"),
        pytest.param((30, 10, 5, 1), [1] * 46, 0, id="one layer of a kind"),
        pytest.param((39, 9, 5), [5] * 7 + [4] + [5, 4] + [5], 2, id="mimo"),
    ],
)
def test_group_sizes(counts, group_sizes, num_padding):
    """The smallest type sets the size, unless all types are within 1.5 times of each other."""
    kinds = [sliding(32), full(), sliding(64), sliding(128)]
    groups = group_layers([spec for spec, count in zip(kinds, counts, strict=False) for _ in range(count)])
    assert [len(group.layers) for group in groups] == group_sizes
    assert sum(group.num_padding_layers for group in groups) == num_padding


def test_layers_are_dealt_out_in_turn_so_that_every_pipeline_stage_has_some_of_each_group():
    groups = group_layers([sliding(32)] * 5 + [full()] * 2)
    assert [group.layers for group in groups] == [(0, 3), (1, 4), (2,), (5, 6)]


def test_groups_come_in_the_order_in_which_their_types_first_appear():
    assert shape_of(group_layers([full(), sliding(32), mamba(16)])) == [
        ("full", 1, 0),
        ("sliding", 1, 0),
        ("mamba", 1, 0),
    ]


def test_layers_that_are_all_alike_are_one_group():
    assert shape_of(group_layers([sliding(32)] * 26)) == [("sliding", 26, 0)]


def test_layers_of_one_type_and_several_sizes_are_one_group_without_padding():
    """OpenELM's layers differ in their number of heads: a block takes the sum of their pages."""
    (group,) = group_layers([full(num_kv_heads=3), full(num_kv_heads=4), full(num_kv_heads=5)])
    assert (len(group.layers), group.bytes_per_block) == (3, (3 + 4 + 5) * full().page_bytes)


def test_a_marked_window_does_not_part_full_attention_layers():
    assert shape_of(group_layers([full(window=512), full(), full(window=512)])) == [("full", 3, 0)]


def test_no_layer_keeps_anything_and_there_is_no_group():
    assert group_layers([]) == []


# -------------------------------------------------------------------------------------------- equal pages


def test_the_smaller_page_grows_by_a_longer_block():
    """Full attention with half the heads of its sliding neighbours: blocks of 32 tokens beside blocks of 16."""
    groups = group_layers([sliding(64, num_kv_heads=2), full()])
    assert [(group.spec.block_size, group.bytes_per_block) for group in groups] == [(16, 128), (32, 128)]


def test_a_page_that_does_not_divide_is_padded():
    groups = group_layers([sliding(64, num_kv_heads=3), full(num_kv_heads=2)])
    assert [(group.spec.block_size, group.bytes_per_block) for group in groups] == [(16, 192), (16, 192)]


def test_states_are_padded_to_the_attention_page():
    groups = group_layers([mamba(16, page_tokens=10), full()])
    assert [group.spec.page_bytes for group in groups] == [64, 64]


def test_latent_pages_that_do_not_divide_are_refused():
    with pytest.raises(UnsupportedLayersError, match="an MLA page of 96 bytes cannot become one of 128"):
        group_layers([MLASpec(block_size=16, head_size=3), sliding(32, num_kv_heads=2)])


# ------------------------------------------------------------------------------------- hybrid manager off


def test_without_the_hybrid_manager_windows_are_kept_whole_in_one_group():
    (group,) = group_layers([sliding(1024)] * 52 + [full()] * 10, hybrid=False)
    assert (group.spec.kind, len(group.layers)) == ("full", 62)


def test_without_the_hybrid_manager_windows_take_the_blocks_of_full_attention():
    (group,) = group_layers([sliding(1024, 16), full(32)], hybrid=False)
    assert (group.spec.block_size, group.bytes_per_block) == (32, 2 * full(32).page_bytes)


def test_without_the_hybrid_manager_windows_alone_stay_windows():
    assert shape_of(group_layers([sliding(32)] * 4, hybrid=False)) == [("sliding", 4, 0)]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([sliding(32), sliding(64), full()], r"layers of several windows \(32, 64\)"),
        ([sliding(32), chunked(64)], "no full attention among them"),
        ([sliding(32), mamba(16), full()], "do not become one attention type"),
    ],
)
def test_without_the_hybrid_manager_some_layers_cannot_be_served(specs, message):
    with pytest.raises(UnsupportedLayersError, match=message):
        group_layers(specs, hybrid=False)
