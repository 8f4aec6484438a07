"""The worked examples of the design document "Hybrid KV Cache Manager", in its order.

Where vLLM 0.32 has moved on, the test shows what vLLM does and its docstring says what the document said.
"""

import pytest

from kvcache.alignment import align_states
from kvcache.block_pool import NULL_BLOCK
from kvcache.coordinator import HybridCoordinator, NoPrefixCacheCoordinator, UnitaryCoordinator
from kvcache.grouping import group_layers
from kvcache.layout import plan_layout
from kvcache.manager import KVCacheManager, RequestBlocks
from kvcache.managers import FullAttentionManager, SlidingWindowManager
from kvcache.specs import FullAttentionSpec, MambaSpec, SlidingWindowSpec, cdiv
from tests.kvcache.pools import (
    cached_positions,
    chunked,
    full,
    hash_positions,
    hit_of,
    mamba,
    manager_of,
    request_of,
    serve,
    sliding,
)

PADDED_TO = 8
"""Layers of Gemma-3-27b's smallest groups."""


def layers_of(groups) -> list[int]:
    return [len(group.layers) for group in groups]


def blocks_held(manager: KVCacheManager, request: RequestBlocks) -> list[int]:
    """Blocks that a request holds in each group, in the groups' order."""
    return [
        len(table.ids) // group_manager.num_groups
        for group_manager, table in zip(manager.managers, request.tables, strict=True)
        for _ in group_manager.groups
    ]


# ------------------------------------------------------------------------------------------ allocation


def test_case_1_toy_model():
    """One full and three sliding-window layers: a block holds the tokens of one layer."""
    groups = group_layers([full(), sliding(32), sliding(32), sliding(32)])
    layout = plan_layout(groups, num_blocks=100, max_model_len=112, max_in_flight_tokens=112)
    assert (layers_of(groups), layout.bytes_per_block) == ([1, 1, 1, 1], full().token_bytes * 16)


def test_case_2_10_full_and_20_sliding_window_layers_make_3_groups_of_10():
    """vLLM gives the sliding groups every second layer; the document's are the first ten and the last ten."""
    groups = group_layers([full()] * 10 + [sliding(32)] * 20)
    assert [group.layers for group in groups] == [
        tuple(range(10)),
        tuple(range(10, 30, 2)),
        tuple(range(11, 30, 2)),
    ]


def test_case_2_a_request_of_112_tokens_needs_11_blocks():
    """What its last token reads: 7 blocks of full attention, and the window's 2 in each of two groups."""
    manager = manager_of(*[full()] * 10, *[sliding(32)] * 20)
    needed = [
        cdiv(112, each.block_size) - each.first_needed_token(111) // each.block_size
        for each in manager.managers
        for _ in each.groups
    ]
    assert needed == [7, 2, 2]


def test_case_2_the_manager_holds_21_blocks_while_it_computes_them_and_14_after():
    """The document draws the steady need. A window's old blocks go back before the next step, not within one,
    and the next token needs slots of its own: 8 + 3 + 3.
    """
    manager = manager_of(*[full()] * 10, *[sliding(32)] * 20)
    request = request_of(manager, range(113), prompt_tokens=112)
    assert manager.admit(request, 0, 112)
    while_computed = blocks_held(manager, request)
    assert manager.extend(request, 112, 113)
    assert (while_computed, blocks_held(manager, request)) == ([7, 7, 7], [8, 3, 3])


def test_case_3_gemma_3_27b_has_7_groups_and_8_padding_layers():
    """vLLM spreads the eight over the sliding groups (9 or 8 layers of 10); the document leaves them to the last."""
    window = SlidingWindowSpec(block_size=16, num_kv_heads=16, head_size=128, window=1024)
    everything = FullAttentionSpec(block_size=16, num_kv_heads=16, head_size=128)
    groups = group_layers(([window] * 5 + [everything]) * 10 + [window] * 2)
    layout = plan_layout(groups, kv_cache_bytes=40 << 30, max_model_len=131_072, max_in_flight_tokens=8192)
    assert layers_of(groups) == [9, 9, 9, 9, 8, 8, 10]
    assert sum(group.num_padding_layers for group in groups) == PADDED_TO
    assert (layout.bytes_per_block, layout.num_blocks) == (10 * 16 * 16 * 128 * 2 * 2, 32_768)


def test_case_3_groups_of_20_full_and_30_sliding_layers_still_have_20():
    """The document hoped for 10. vLLM pads where the larger type has less than 1.5 times the layers, and else
    takes the smaller one's number: that is 20.
    """
    groups = group_layers([full()] * 20 + [sliding(32)] * 30)
    assert [(len(group.layers), group.num_padding_layers) for group in groups] == [(20, 0), (15, 5), (15, 5)]


def test_case_3_one_more_full_layer_for_speculation_pads_instead_of_splitting():
    """18 sliding and 19 full layers: under the document's rule groups of 18, three of them and one nearly empty."""
    groups = group_layers([sliding(128)] * 18 + [full()] * 19)
    assert [(len(group.layers), group.num_padding_layers) for group in groups] == [(18, 1), (19, 0)]


JAMBA_STATE = MambaSpec(block_size=16, shapes=((3, 8192), (8192, 16)), dtypes=("bfloat16", "bfloat16"))
JAMBA_ATTENTION = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)


def test_case_4_the_attention_block_grows_until_its_page_holds_the_state():
    """Jamba's state takes 311,296 bytes, a token 4,096: 76 tokens, in steps of 16 that is 80."""
    attention, _ = align_states([JAMBA_ATTENTION, JAMBA_STATE], 16, True, 262_144)
    assert (JAMBA_STATE.page_bytes, JAMBA_ATTENTION.token_bytes, attention.block_size) == (311_296, 4_096, 80)


def test_case_4_the_state_is_padded_to_the_attention_page():
    attention, state = align_states([JAMBA_ATTENTION, JAMBA_STATE], 16, True, 262_144)
    padding = state.page_bytes / JAMBA_STATE.page_bytes - 1
    assert (state.page_bytes, f"{padding:.2%}") == (attention.page_bytes, "5.26%")


def test_case_4_then_layers_are_grouped_as_in_case_3():
    """Jamba v0.1: 4 attention layers among 32."""
    layers = [JAMBA_ATTENTION if layer % 8 == 4 else JAMBA_STATE for layer in range(32)]
    groups = group_layers(align_states(layers, 16, True, 262_144))
    assert layers_of(groups) == [4] * 8


def test_case_5_layers_that_share_another_layers_cache_get_no_memory():
    """Of 30 layers the last 10 read what others keep: they have no spec, and a block is as large as without them."""
    keeping = [sliding(32)] * 16 + [full()] * 4
    every_layer = keeping + [sliding(32)] * 8 + [full()] * 2
    sizes = [
        plan_layout(group_layers(specs), num_blocks=100, max_model_len=99, max_in_flight_tokens=9).bytes_per_block
        for specs in (keeping, every_layer)
    ]
    assert sizes == [4 * full().page_bytes, 6 * full().page_bytes]


# -------------------------------------------------------------------------------------- prefix caching
# As in the document, a block is one token here.


def test_the_same_tokens_of_different_groups_are_cached_and_evicted_independently():
    """When all but 9 free blocks are reused, full attention has lost its last 9 tokens, the window none of its 3."""
    manager = manager_of(full(1), sliding(4, 1), num_blocks=40)
    serve(manager, range(15))
    before = cached_positions(manager, range(15))
    manager.pool.take(manager.pool.num_free - 9)
    after = cached_positions(manager, range(15))
    assert (before, after) == ([list(range(15)), [11, 12, 13]], [list(range(6)), [11, 12, 13]])


def test_case_0_full_attention_is_scanned_from_the_left_until_the_first_miss():
    manager = manager_of(full(1))
    request = request_of(manager, range(15))
    hash_positions(manager, request, [0, 1, 2, 3, 4, 5, 6, 9, 10])
    assert manager.find_hit(request, 15) == 7


@pytest.mark.parametrize(("cached", "hit"), [((2, 3, 4), 5), ((3, 4, 5), 6), ((11, 12, 13), 14), ((2, 3, 5), 0)])
def test_case_1_a_sliding_window_of_4_resumes_after_any_3_cached_tokens(cached, hit):
    manager = manager_of(sliding(4, 1))
    request = request_of(manager, range(15))
    hash_positions(manager, request, cached)
    assert manager.find_hit(request, 15) == hit


def test_case_1_the_longest_sliding_window_hit_is_found_from_the_right():
    manager = manager_of(sliding(4, 1))
    request = request_of(manager, range(15))
    hash_positions(manager, request, [2, 3, 4, 5, 11, 12, 13])
    assert manager.find_hit(request, 15) == 14


def test_case_1_blocks_before_the_window_are_null():
    """A hit of 14 holds tokens 11 to 13; the next token gets a slot, everything before is the null block."""
    manager = manager_of(sliding(4, 1))
    request = request_of(manager, range(15))
    hash_positions(manager, request, [11, 12, 13])
    assert manager.admit(request, 14, 15)
    (table,) = request.tables
    assert (table.first_held, len(table.ids), NULL_BLOCK in table.ids) == (11, 4, False)


@pytest.mark.parametrize(("full_run", "hit"), [(15, 14), (13, 6), (6, 6), (5, 5), (4, 0)])
def test_case_2_full_attention_first_then_the_sliding_window_within_it(full_run, hit):
    """Windows are cached before tokens 5, 6 and 14; full attention has the first few tokens."""
    manager = manager_of(full(1), sliding(4, 1))
    request = request_of(manager, range(15))
    hash_positions(manager, request, range(full_run), group=0)
    hash_positions(manager, request, [2, 3, 4, 5, 11, 12, 13], group=1)
    assert manager.find_hit(request, 15) == hit


def test_case_2_one_queue_evicts_the_blocks_of_all_groups_in_the_order_in_which_they_were_freed():
    """Windows leave blocks behind while a request runs, so those go before what it held to its end. Blocks
    without a hash are reused before any of them; in the document they queue up with the others.
    """
    manager = manager_of(full(1), sliding(4, 1), num_blocks=100, prefix_cache_retention_interval=None)
    request = request_of(manager, range(15))
    assert manager.admit(request, 0, 10)
    full_table, sliding_table = request.tables
    passed_over = sliding_table.ids[:7]
    assert manager.extend(request, 10, 11)
    unhashed = [full_table.ids[10], sliding_table.ids[-1]]
    held = [*full_table.ids[:10], *sliding_table.ids[:3]]
    manager.free(request, 10)
    order = manager.pool.take(manager.pool.num_free)
    assert order[:2] == unhashed[::-1]
    assert order[-20:] == [*passed_over[::-1], *held[:10][::-1], *held[10:][::-1]]


def test_case_3_mamba_resumes_from_the_last_cached_state():
    """Work in progress in the document. vLLM keeps the state at the prompt's last boundary: 12 of 15 tokens."""
    manager = manager_of(full(4), mamba(4))
    serve(manager, range(15), 12)
    assert hit_of(manager, range(15)) == 12


# -------------------------------------------------------------------------------------- implementation


def test_three_coordinators_are_chosen_by_the_configuration():
    """The document's hybrid coordinator takes two types, one of them full attention; vLLM's takes any."""
    coordinators = [
        manager_of(full(), sliding(32), enable_prefix_caching=False).coordinator,
        manager_of(sliding(32)).coordinator,
        manager_of(full(), sliding(32)).coordinator,
        manager_of(sliding(32), chunked(64)).coordinator,
    ]
    assert [type(coordinator) for coordinator in coordinators] == [
        NoPrefixCacheCoordinator,
        UnitaryCoordinator,
        HybridCoordinator,
        HybridCoordinator,
    ]


def test_one_full_and_two_sliding_window_groups():
    """The two sliding groups always hold the same positions, so one manager keeps the tables of both."""
    managers = manager_of(*[full()] * 10, *[sliding(32)] * 20).managers
    assert [(type(manager), manager.num_groups) for manager in managers] == [
        (FullAttentionManager, 1),
        (SlidingWindowManager, 2),
    ]


def test_n_groups_of_m_layers_need_m_buffers_each_shared_by_n_layers():
    """Ten buffers of one page per block, whatever the number of groups."""
    groups = group_layers([full()] * 10 + [sliding(32)] * 20)
    layout = plan_layout(groups, num_blocks=100, max_model_len=112, max_in_flight_tokens=112)
    assert layout.pool_bytes == 10 * 100 * full().page_bytes


def test_memory_layout_a_request_of_112_tokens_gets_ids_group_by_group():
    """The document's ids: 0-6, 7-8, 9-10. vLLM keeps id 0 for the null block, and computes before it gives back."""
    manager = manager_of(*[full()] * 10, *[sliding(32)] * 20)
    request = request_of(manager, range(112))
    assert manager.admit(request, 0, 112)
    (of_full, of_sliding) = (table.ids for table in request.tables)
    assert (of_full, of_sliding[::2], of_sliding[1::2]) == (
        list(range(1, 8)),
        list(range(8, 15)),
        list(range(15, 22)),
    )
