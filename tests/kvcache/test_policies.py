"""Which layers share a block table, under policies that are not vLLM's."""

from dataclasses import replace

import pytest

from kvcache.errors import KVCacheError, UnsupportedLayersError
from kvcache.grouping import group_layers
from kvcache.policies import POLICIES, KeptLayers, SearchPolicy, policy_named
from kvcache.pool_kinds import ONE_SIZE
from kvcache.specs import FullAttentionSpec, MambaSpec
from tests.kvcache.pools import TOKEN_BYTES, chunked, full, mamba, sliding


def kept(*specs, block_size=16, caching=True, max_model_len=131_072) -> KeptLayers:
    return KeptLayers(tuple(specs), block_size, caching, max_model_len)


def grouped(name, *specs):
    policy = policy_named(name)
    return policy.groups(policy.align(kept(*specs)))


def sizes(name, *specs):
    """(layers, padding layers) of each group."""
    return [(len(group.layers), group.num_padding_layers) for group in grouped(name, *specs)]


def padding_pct(name, *specs):
    """Padding layers in percent of the layers of each kind, as a server warns of them."""
    groups = grouped(name, *specs)
    kinds = dict.fromkeys(group.spec.kind for group in groups)
    counts = {kind: [group for group in groups if group.spec.kind == kind] for kind in kinds}
    return {
        kind: round(100 * sum(g.num_padding_layers for g in of_kind) / sum(len(g.layers) for g in of_kind), 2)
        for kind, of_kind in counts.items()
    }


def state(elements: int, **more) -> MambaSpec:
    """As a model has it: of so many elements of two bytes, not aligned."""
    return MambaSpec(block_size=16, shapes=((elements,),), dtypes=("bfloat16",), **more)


GEMMA_3_27B = [sliding(1024)] * 52 + [full()] * 10
GPT_OSS_WITH_EAGLE = [sliding(128)] * 18 + [full()] * 19
JAMBA = [
    FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128) if layer % 8 == 4 else state(155_648)
    for layer in range(32)
]


def test_each_policy_is_found_by_its_name():
    assert [policy_named(name).name for name in POLICIES] == [
        "vllm", "per-layer", "smallest", "gcd", "search", "unified", "packed", "document-mamba", "two-level", "ideal"
    ]  # fmt: skip


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(KVCacheError, match=r"unknown grouping 'serch'; did you mean 'search'\?"):
        policy_named("serch")


def test_a_name_like_no_other_is_told_them_all():
    with pytest.raises(KVCacheError, match="known: vllm, per-layer, smallest"):
        policy_named("zzz")


# ---------------------------------------------------------------------------------- one group size for all


def test_vllm_is_what_a_server_does():
    assert grouped("vllm", *GEMMA_3_27B) == group_layers(GEMMA_3_27B)


def test_gemma_3_27b_may_waste_15_38_percent_of_its_sliding_layers():
    """8 places of 60 have no layer: 8/52."""
    assert padding_pct("vllm", *GEMMA_3_27B) == {"sliding": 15.38, "full": 0}


def test_one_eagle_layer_more_costs_the_smallest_rule_89_percent_and_vllms_5():
    """19 full layers in groups of 18 leave 17 places, 18 sliding ones in groups of 19 one."""
    assert padding_pct("smallest", *GPT_OSS_WITH_EAGLE) == {"sliding": 0, "full": 89.47}
    assert padding_pct("vllm", *GPT_OSS_WITH_EAGLE) == {"sliding": 5.56, "full": 0}


def test_20_full_and_30_sliding_layers_make_groups_of_20_under_vllm_and_10_under_gcd():
    layers = [full()] * 20 + [sliding(32)] * 30
    assert sizes("vllm", *layers) == [(20, 0), (15, 5), (15, 5)]
    assert sizes("gcd", *layers) == [(10, 0)] * 5


def test_one_layer_of_a_kind_makes_46_groups_of_all():
    layers = [sliding(32)] * 30 + [full()] * 10 + [sliding(64)] * 5 + [sliding(128)]
    assert sizes("smallest", *layers) == [(1, 0)] * 46


def test_per_layer_gives_each_layer_a_table():
    assert sizes("per-layer", full(), *[sliding(32)] * 3) == [(1, 0)] * 4


@pytest.mark.parametrize("name", ["per-layer", "smallest", "gcd", "search", "unified", "packed", "document-mamba"])
@pytest.mark.parametrize("layers", [[full()] * 4, [full(num_kv_heads=1), full(num_kv_heads=3)], [state(99)] * 3, []])
def test_layers_of_one_type_are_left_together(name, layers):
    assert grouped(name, *layers) == group_layers(kept(*layers).aligned())


@pytest.mark.parametrize("name", ["per-layer", "smallest", "gcd"])
def test_pages_are_equal_in_every_group(name):
    groups = grouped(name, sliding(64, num_kv_heads=2), *[full()] * 3, state(100))
    assert len({(len(g.layers) + g.num_padding_layers) * g.spec.page_bytes for g in groups}) == 1


def test_unified_keeps_windows_whole_in_one_group():
    (group,) = grouped("unified", *GEMMA_3_27B)
    assert (group.spec.kind, len(group.layers)) == ("full", 62)


def test_unified_refuses_states_beside_attention():
    with pytest.raises(UnsupportedLayersError, match="the hybrid manager cannot be off"):
        grouped("unified", *JAMBA)


# ------------------------------------------------------------------------------------------------ packing


def test_packed_layers_keep_pages_of_their_own_size():
    """Sliding pages of 128 bytes, full ones of 64: two full layers take the place of a sliding one."""
    groups = grouped("packed", *[sliding(64, num_kv_heads=2)] * 3, *[full()] * 6)
    assert [(group.bytes_per_block, group.spec.block_size) for group in groups] == [(384, 16), (384, 16)]


def test_packed_states_are_not_padded():
    """LFM2: a state is a quarter of an attention page. 12 of them in three pages take no more groups than 3."""
    groups = grouped("packed", *[full()] * 6, *[state(8)] * 10)
    assert [(group.spec.kind, group.bytes_per_block) for group in groups] == [
        ("full", 192), ("full", 192), ("mamba", 160)
    ]  # fmt: skip


def test_packed_is_vllms_rule_where_pages_are_equal():
    assert grouped("packed", *GEMMA_3_27B) == group_layers(GEMMA_3_27B)


def test_packed_layers_of_one_type_and_several_pages_may_share_a_group():
    groups = grouped("packed", *[full(num_kv_heads=1), full(num_kv_heads=3)] * 2, sliding(32), sliding(32))
    assert [(group.layers, [spec.page_bytes for spec in group.specs]) for group in groups] == [
        ((0, 1), [64, 192]), ((2, 3), [64, 192]), ((4, 5), [64, 64])
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- search


def test_search_takes_the_fewest_groups_without_padding():
    """52 and 10 layers: two in a group are enough, one is not needed."""
    assert sizes("search", *GEMMA_3_27B) == [(2, 0)] * 31


def test_a_price_for_groups_makes_search_take_fewer():
    wide = SearchPolicy(request_tokens=(8192,), bytes_per_group=10**9).groups(GEMMA_3_27B)
    free = SearchPolicy(request_tokens=(8192,)).groups(GEMMA_3_27B)
    assert len(wide) < len(group_layers(GEMMA_3_27B)) < len(free)


def test_search_may_put_differently_many_layers_of_each_type_into_a_block():
    """Twelve states fill the block of three attention layers."""
    layers = kept(*[full()] * 6, *[state(8)] * 12)
    groups = policy_named("search").groups(layers.aligned())
    assert [(group.spec.kind, len(group.layers)) for group in groups] == [("full", 3), ("full", 3), ("mamba", 12)]


@pytest.mark.parametrize("length", [1, 128, 8192, 131_072])
def test_search_never_holds_more_than_vllm_at_a_length_of_its_mix(length):
    layers = [sliding(64, num_kv_heads=3)] * 7 + [full(num_kv_heads=2)] * 5 + [chunked(100)] * 3
    held = [
        ONE_SIZE.block_bytes(groups) * sum(group.spec.blocks_while_decoding(length) for group in groups)
        for groups in (SearchPolicy((length, 4096)).groups(layers), group_layers(layers))
    ]
    assert held[0] <= held[1]


# ------------------------------------------------------------------------------------------------- states


def test_document_mamba_compares_a_state_with_all_attention_layers_of_a_group():
    """Jamba: 311,296 bytes of a state are 76 tokens of one layer, but 19 of four: blocks of 32 tokens, not 80."""
    attention, *states = grouped("document-mamba", *JAMBA)
    assert (attention.spec.block_size, len(attention.layers)) == (32, 4)
    assert {(len(group.layers), group.spec.page_bytes) for group in states} == {(1, 4 * attention.spec.page_bytes)}


def test_document_mamba_puts_as_many_states_into_a_block_as_fit():
    """Ten states of 16 bytes share a block of six pages of 64; each is padded to a tenth of it."""
    attention, states = grouped("document-mamba", *[full()] * 6, *[state(8)] * 10)
    assert (attention.bytes_per_block, len(states.layers), states.spec.page_bytes) == (384, 10, 38)


def test_document_mamba_keeps_the_models_layers_apart():
    groups = grouped("document-mamba", *JAMBA)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(32))
    assert groups[0].layers == (4, 12, 20, 28)


def test_document_mamba_without_states_is_vllms_rule():
    assert grouped("document-mamba", *GEMMA_3_27B) == group_layers(GEMMA_3_27B)


# ------------------------------------------------------------------------------- more than one size of block


def test_two_level_splits_large_pages_into_small_ones_of_one_type():
    """Small pages of 10 and 52 layers; the large page has 260: it is 26 or 5 small ones."""
    policy = policy_named("two-level")
    groups = grouped("two-level", *GEMMA_3_27B)
    page = 16 * TOKEN_BYTES
    assert [group.bytes_per_block for group in groups] == [52 * page, 10 * page]
    assert policy.held_bytes(groups, [5, 26]) == [260 * page, 260 * page]
    assert policy.held_bytes(groups, [6, 1]) == [520 * page, 260 * page]


def test_two_level_and_ideal_pad_nothing():
    for name in ("two-level", "ideal"):
        assert all(spec.page_bytes == spec.content_bytes for group in grouped(name, *JAMBA) for spec in group.specs)


def test_ideal_gives_each_layer_a_memory_of_its_own():
    policy = policy_named("ideal")
    groups = grouped("ideal", full(), sliding(64), replace(state(100), num_speculative_blocks=3))
    blocks = [group.spec.blocks_while_decoding(1000) for group in groups]
    assert policy.held_bytes(groups, blocks) == [1000 * TOKEN_BYTES, 64 * TOKEN_BYTES, 200]


def test_specs_are_aligned_as_a_server_does():
    layers = kept(full(), mamba(16, page_tokens=40))
    assert policy_named("vllm").align(layers) == layers.aligned()
    assert [spec.block_size for spec in layers.aligned()] == [48, 48]
