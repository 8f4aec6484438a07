"""The pool as real memory: every byte belongs to one page of one place, and the bytes are those that were predicted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache import pages
from kvcache.errors import DeviceMemoryError, KVCacheError
from kvcache.grouping import group_layers
from kvcache.layout import GIB, KVCacheLayout
from kvcache.pages import KVPages, Words, slot_mapping
from kvcache.placement import BLOCK_OUTERMOST, LAYER_OUTERMOST, place
from kvcache.policies import policy_named
from kvcache.scaling import thinned
from kvcache.specs import DTYPE_BYTES, FullAttentionSpec, MambaSpec, MLASpec, SlidingWindowSpec
from models_configs import list_models
from simulator.scenario import Scenario
from simulator.server import plan_server

ORDERS = (LAYER_OUTERMOST, BLOCK_OUTERMOST)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def layout_of(*specs, num_blocks=7, groups=None):
    return KVCacheLayout(tuple(groups or group_layers(specs)), num_blocks, 1024, 1024)


FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8)
SLIDING = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, window=32)
LATENT = MLASpec(block_size=64, head_size=24)
STATE = MambaSpec(
    block_size=16, shapes=((3, 20), (20, 8)), dtypes=("bfloat16", "float32"), cache_mode="align", padded_page_bytes=1024
)
MODELS = {
    "full": [FULL] * 3,
    "full and sliding": [FULL] * 10 + [SLIDING] * 20,
    "padding layers": [SLIDING] * 5 + [FULL] * 3,
    "latents": [LATENT] * 2,
    "states": [replace(FULL, head_size=8), STATE, STATE, STATE],
    "heads of two sizes": [FULL, replace(FULL, head_size=16)],
    "values shorter than keys": [replace(FULL, head_size_v=4)] * 2,
}


def test_ten_full_and_twenty_sliding_layers_share_ten_buffers():
    """The design document's own example: full.0, sw.0 and sw.10 share buffer 0, in pieces of one page."""
    layout = layout_of(*MODELS["full and sliding"])
    pool = KVPages(layout)
    assert len(pool.buffers) == 10
    assert {buffer.shape for buffer in pool.buffers} == {torch.Size([7, FULL.page_bytes])}
    for nth, buffer in enumerate(pool.buffers):
        sharers = [group.layers[nth] for group in layout.groups]
        assert {pool.views(layer)[0].data_ptr() for layer in sharers} == {buffer.data_ptr()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("model", MODELS)
def test_every_byte_is_in_one_part_of_one_block_at_most(model, order):
    """Whatever is written into one group's views is read from there, and nothing else has changed."""
    specs = MODELS[model]
    layout = layout_of(*specs)
    for group in layout.groups:
        pool = KVPages(layout, order=order)
        pool.raw.zero_()
        parts = [part for layer in group.layers for part in pool.views(layer)]
        for number, part in enumerate(parts, 1):
            assert not part.float().any()
            part.copy_(torch.full(part.shape, float(number)))
        assert [part.float().unique().tolist() for part in parts] == [[number] for number in range(1, len(parts) + 1)]
        num_bytes = sum(part.numel() * part.element_size() for part in parts)
        assert num_bytes == layout.num_blocks * sum(spec.content_bytes for spec in group.specs)


def test_allocated_bytes_are_the_predicted_ones():
    """Of every model of the catalogue, in both orders, to the byte."""
    predicted, allocated = {}, {}
    for model in list_models():
        server = plan_server(Scenario(model=model.name, num_gpu_blocks_override=3, max_model_len=16))
        layout = KVCacheLayout(server.groups, 3, 16, 16)
        predicted[model.name] = [layout.pool_bytes] * 2
        allocated[model.name] = [KVPages(layout, order=order).storage_bytes for order in ORDERS]
    assert allocated == predicted


def test_a_real_pool_of_gigabytes_has_the_predicted_bytes():
    """Memory that nobody touches costs nothing, so this takes no time."""
    server = plan_server(Scenario(model="gemma-3-27b", kv_cache_memory_bytes=2 * GIB, max_model_len=1024))
    layout = server.layout()
    pool = KVPages(layout)
    assert (pool.storage_bytes, len(pool.buffers)) == (layout.pool_bytes, 10)
    assert sum(buffer.numel() for buffer in pool.buffers) == layout.pool_bytes


def test_packed_groups_are_laid_out_block_by_block():
    """Pages of a block lie side by side and differ in size; layers of other groups share the block's bytes."""
    specs = [FULL, replace(FULL, head_size=16), SLIDING, SLIDING]
    layout = layout_of(groups=policy_named("packed").groups(specs))
    pool = KVPages(layout, order=BLOCK_OUTERMOST)
    assert pool.storage_bytes == layout.pool_bytes
    assert [pages.stride_bytes for pages in pool.placement.layers] == [layout.bytes_per_block] * 4
    with pytest.raises(KVCacheError, match="laid out block-outermost"):
        place(layout)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_keys_and_values_have_their_dtype(dtype):
    pool = KVPages(layout_of(replace(FULL, dtype=dtype)))
    key, value = pool.views(0)
    assert key.shape == value.shape == (7, 16, 2, 8)
    assert {key.dtype, value.dtype} == {pages.TORCH_DTYPES[dtype]}
    assert key.untyped_storage().data_ptr() == pool.raw.untyped_storage().data_ptr()


def test_states_lie_behind_one_another_and_the_rest_of_the_page_is_padding():
    convolution, recurrent = KVPages(layout_of(*MODELS["states"])).views(1)
    assert (convolution.shape, convolution.dtype) == ((7, 3, 20), torch.bfloat16)
    assert (recurrent.shape, recurrent.dtype) == ((7, 20, 8), torch.float32)
    assert recurrent.data_ptr() - convolution.data_ptr() == 3 * 20 * 2


def test_states_that_no_tensor_can_view_are_refused_by_name():
    odd = MambaSpec(block_size=16, shapes=((3, 1), (1, 16)), dtypes=("bfloat16", "float32"))
    with pytest.raises(KVCacheError, match="layer 0: its recurrent begins at byte 6 of pages of 70 bytes"):
        KVPages(layout_of(odd)).views(0)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=9, unique=True), st.sampled_from([1, 4, 16]))
@settings(max_examples=30)
def test_a_slot_is_a_place_in_the_block_of_its_position(blocks, block_size):
    positions = np.arange(len(blocks) * block_size)
    slots = slot_mapping(np.array(blocks), positions, block_size)
    assert slots.tolist() == [blocks[p // block_size] * block_size + p % block_size for p in positions]
    assert slot_mapping(torch.tensor(blocks), torch.from_numpy(positions), block_size).tolist() == slots.tolist()


@pytest.mark.parametrize("word_bytes", [1, 2, 4, 8])
def test_marks_are_the_pools_own_bytes(word_bytes):
    raw = torch.zeros(64, dtype=torch.uint8)
    words, marks = Words(raw, word_bytes), np.array([[-1, 1 << 40]])
    places = np.array([[0, 24 // word_bytes]])
    words.write(places, marks)
    assert words.read(places).tolist() == marks.tolist()
    assert raw[:8].tolist() == [255] * 8
    assert not words.differ(places, marks)
    raw[24] = 7
    assert words.differ(places, marks)


def test_a_device_that_is_too_small_says_what_is_needed_and_what_is_free(monkeypatch):
    monkeypatch.setattr(pages, "free_bytes", lambda device: GIB)
    with pytest.raises(DeviceMemoryError) as error:
        KVPages(layout_of(FULL, num_blocks=4 * GIB // FULL.page_bytes))
    assert str(error.value) == (
        "--back-with: the pool needs 4.00 GiB, cpu has 1.00 GiB free; --pool-fraction 0.22 would fit"
    )


@pytest.mark.parametrize("model", ["gemma-3-27b", "jamba-v0.1", "llama-4-scout", "llama-3.1-8b"])
def test_thinner_pages_are_a_power_of_two_smaller_and_as_many(model):
    server = plan_server(Scenario(model=model, num_gpu_blocks_override=3, max_model_len=16))
    layout = KVCacheLayout(server.groups, 3, 16, 16)
    thin, divisor = thinned(layout, 0.05)
    assert (divisor, thin.num_blocks, len(thin.groups)) == (16, 3, len(layout.groups))
    assert KVPages(thin).storage_bytes * 16 == layout.pool_bytes


def test_pages_cannot_be_thinner_than_a_mark():
    with pytest.raises(KVCacheError, match="4 bytes of a key would be left"):
        thinned(layout_of(FULL), 0.1)


def test_a_cpu_rounds_nothing_and_gathers_pages():
    assert pages.allocation_bytes([1000], "cpu") == [{"requested": 1000, "allocated": 1000, "reserved": 1000}]
    assert pages.copy_bytes_per_s("cpu", num_bytes=1 << 16, repeats=1) > 0
    assert pages.gather_bytes_per_s("cpu", 4096, pool_bytes=1 << 18, read_bytes=1 << 16, repeats=1) > 0
    assert pages.memory_now("cpu")["resident_bytes"] > 1 << 20


@needs_cuda
def test_cuda_rounds_as_its_allocator_says():
    """Up to 512 bytes more are allocated, and up to 2 MiB more reserved."""
    (row,) = pages.allocation_bytes([100 * 2**20 + 1], "cuda")
    assert 0 <= row["allocated"] - row["requested"] < 512
    assert 0 <= row["reserved"] - row["requested"] < 2 * 2**20


@needs_cuda
def test_marks_on_cuda_are_the_pools_own_bytes():
    words, marks = Words(torch.zeros(64, dtype=torch.uint8, device="cuda"), 8), np.array([-1, 1 << 40])
    words.write(np.array([0, 3]), marks)
    assert words.read(np.array([0, 3])).tolist() == marks.tolist()
    assert words.differ(np.array([0, 3]), marks[::-1])
