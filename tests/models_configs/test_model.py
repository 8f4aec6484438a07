"""What models keep, weigh and compute."""

from collections import Counter
from dataclasses import replace

import pytest

from kvcache.specs import ChunkedLocalSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from models_configs import Chunk, Window, find_model
from models_configs.families import llama4
from models_configs.hf_config import HFConfig

GIB = 2**30


def kinds(name: str) -> str:
    """The first letter of each layer's kind: f(ull), s(liding), c(hunked), m(amba)."""
    return "".join(spec.kind[0] for spec in find_model(name).kv_cache_specs())


# What is kept


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gemma-3-27b", "sssssf" * 10 + "ss"),
        ("gemma-3-1b", "sssssf" * 4 + "ss"),
        ("gpt-oss-20b", "sf" * 12),
        ("llama-3.1-8b", "f" * 32),
        ("llama-4-maverick", "cccf" * 12),
        ("jamba-v0.1", "mmmmfmmm" * 4),
        ("jamba-reasoning-3b", ("m" * 7 + "f" + "m" * 6) * 2),
        ("bamba-9b-v2", "m" * 9 + "f" + "mmmmmmmmf" * 2 + "mmmm"),
        ("nemotron-h-8b", "mmmmf" + "mmmmmf" * 3 + "mmmmm"),
        ("nemotron-3-nano", "mmmf" * 5 + "mmmmf" + "mmmm"),
        ("falcon-h1-34b", "fm" * 72),
        ("granite-4.0-h-small", "m" * 5 + "fmmmmmmmmm" * 3 + "fmmmm"),
        ("zamba2-7b", "m" * 6 + "fm" + "m" * 4 + "fmmmmmm" * 11 + "fmmmm"),
        ("mamba-codestral-7b", "m" * 64),
        ("qwen3-next-80b-a3b", "mmmf" * 12),
        ("qwen3.6-27b", "mmmf" * 16),
        ("minimax-m1-80k", "mmmmmmmf" * 10),
        ("lfm2-1.2b", "mmf" * 3 + "mf" * 3 + "m"),
        ("mistral-7b-v0.1", "s" * 32),
        ("gemma-2-9b", "sf" * 21),
        ("gemma-3n-e4b", "ssssf" * 4),
        ("gemma-4-26b-a4b", "sssssf" * 5),
        ("gemma-4-e2b", "ssssf" * 3),
        ("command-r7b", "sssf" * 8),
        ("qwen2.5-7b", "f" * 28),
        ("exaone-4.0-32b", "sssf" * 16),
        ("mimo-v2-flash", "fssssf" + "sssssf" * 7),
        ("step-3.5-flash", "fsss" * 11 + "f"),
    ],
)
def test_layers_alternate_as_published(name: str, pattern: str) -> None:
    assert kinds(name) == pattern


def test_gemma_keeps_a_window_of_1024_tokens_in_most_layers() -> None:
    sliding, full = find_model("gemma-3-27b").kv_cache_specs()[4:6]
    assert sliding == SlidingWindowSpec(block_size=16, num_kv_heads=16, head_size=128, window=1024)
    assert full == FullAttentionSpec(block_size=16, num_kv_heads=16, head_size=128)


def test_llama_4_keeps_chunks_of_8192_tokens() -> None:
    spec = find_model("llama-4-scout").kv_cache_specs(block_size=32)[0]
    assert spec == ChunkedLocalSpec(block_size=32, num_kv_heads=8, head_size=128, chunk=8192)


def test_jamba_keeps_one_state_where_it_does_not_attend() -> None:
    spec = find_model("jamba-v0.1").kv_cache_specs(mamba_ssm_cache_dtype="float32", mamba_cache_mode="align")[0]
    assert spec == MambaSpec(
        block_size=16, shapes=((3, 8192), (8192, 16)), dtypes=("bfloat16", "float32"), cache_mode="align"
    )
    assert spec.page_bytes == 573_440


def test_ranks_share_channels_evenly_and_kv_heads_until_each_has_one() -> None:
    jamba = find_model("jamba-v0.1")
    mamba, attention = jamba.kv_cache_specs(tensor_parallel=16)[3:5]
    assert isinstance(mamba, MambaSpec)
    assert mamba.shapes == ((3, 512), (512, 16))
    assert attention == FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=128)


def test_fp8_halves_the_kv() -> None:
    llama = find_model("llama-3.1-8b")
    assert [llama.kv_cache_specs(kv_cache_dtype=dtype)[0].page_bytes for dtype in ("auto", "fp8")] == [65_536, 32_768]


def test_the_recurrent_state_follows_the_convolution_unless_told_otherwise() -> None:
    spec = find_model("jamba-v0.1").kv_cache_specs(mamba_cache_dtype="float32")[0]
    assert isinstance(spec, MambaSpec)
    assert spec.dtypes == ("float32", "float32")


def test_heads_that_cannot_be_split_are_refused() -> None:
    scout = find_model("llama-4-scout")
    with pytest.raises(ValueError, match="40 attention heads cannot be split evenly over 16 ranks"):
        scout.kv_cache_specs(tensor_parallel=16)
    assert [n for n in (1, 2, 4, 8, 16) if scout.can_split(n)] == [1, 2, 4, 8]


def test_distinct_reaches_are_windows_and_chunks_only() -> None:
    assert find_model("gpt-oss-20b").reaches == (Window(128),)
    assert find_model("llama-4-scout").reaches == (Chunk(8192),)
    assert find_model("jamba-v0.1").reaches == ()


# What is weighed


def test_an_unquantized_model_weighs_two_bytes_a_weight() -> None:
    llama = find_model("llama-3.1-8b")
    assert llama.weight_bytes() == 2 * llama.num_parameters


@pytest.mark.parametrize(("name", "published_gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_experts_in_4_bits_make_the_checkpoint_as_small_as_published(name: str, published_gib: float) -> None:
    """OpenAI's model card (arXiv 2508.10925, table 1)."""
    assert find_model(name).weight_bytes() / GIB == pytest.approx(published_gib, rel=0.005)


@pytest.mark.parametrize(("name", "loaded_gib"), [("gpt-oss-20b", 13.72), ("gpt-oss-120b", 65.97)])
def test_kernels_pad_experts_as_servers_print(name: str, loaded_gib: float) -> None:
    """'Model loading took ... GiB' of vLLM 0.19 on an A100 and, in vLLM issue 23278, of 0.10.1 on an H100."""
    model = find_model(name)
    assert (model.weight_bytes() + model.kernel_padding_bytes()) / GIB == pytest.approx(loaded_gib, rel=0.005)


def test_ranks_split_all_but_norms() -> None:
    """For as many ranks as KV heads a Llama is cut in equal parts, its norms apart."""
    llama = find_model("llama-3.1-8b")
    norms = (2 * 32 + 1) * 4096
    assert llama.weight_bytes(8) == 2 * ((llama.num_parameters - norms) // 8 + norms)


def test_more_ranks_than_kv_heads_copy_them() -> None:
    """16 ranks hold 8 KV heads twice: 8 more key and value projections of 4096 x 128 in each of 32 layers."""
    llama = find_model("llama-3.1-8b")
    norms = (2 * 32 + 1) * 4096
    copies = 2 * 8 * 4096 * 128 * 32
    assert 16 * llama.weight_bytes(16) == 2 * (llama.num_parameters + copies + 15 * norms)


def test_tied_embeddings_are_counted_once() -> None:
    gemma = find_model("gemma-3-1b")
    untied = replace(gemma, tie_embeddings=False)
    assert untied.num_parameters - gemma.num_parameters == 262_144 * 1152


# What is computed


def test_a_token_costs_two_flops_for_each_weight_it_passes() -> None:
    gpt_oss = find_model("gpt-oss-20b")
    layers = sum(layer.linear_flops_per_token() for layer in gpt_oss.layers)
    embeddings_and_norm = 2 * 201_088 * 2880 + 2880
    assert layers == 2 * (gpt_oss.num_active_parameters - embeddings_and_norm)


def test_attention_costs_grow_with_the_window_and_stop_there() -> None:
    gemma = find_model("gemma-3-27b")
    sliding, full = gemma.mixing_costs(gemma.kv_cache_options())[4:6]
    # 32 query heads of 128; 16 KV heads of 128, key and value, bfloat16
    assert sliding.flops(1, 5000) == 4 * 32 * 128 * 1024
    assert full.flops(1, 5000) == 4 * 32 * 128 * 5001
    assert sliding.num_bytes(1, 5000) == 8192 * 1024
    assert full.num_bytes(1, 5000) == 8192 * 5001


def test_a_state_costs_the_same_after_any_context() -> None:
    jamba = find_model("jamba-v0.1")
    mamba = jamba.mixing_costs(jamba.kv_cache_options())[0]
    assert mamba.flops(10, 0) == mamba.flops(10, 100_000)
    assert mamba.num_bytes(10, 100_000) == 2 * (3 * 8192 + 8192 * 16) * 2


def test_routed_experts_are_those_of_every_second_layer_of_maverick() -> None:
    routings = Counter(find_model("llama-4-maverick").routings())
    ((routing, num_layers),) = routings.items()
    assert (num_layers, routing.num_experts, routing.top_k) == (24, 128, 1)
    assert routing.expert_bytes == 2 * 3 * 5120 * 8192


# Llama 4 by other fields


def llama_4(**fields: object) -> str:
    """The pattern of a small Llama 4 with these fields: c(hunked) or f(ull), upper case where there are experts."""
    (published, *_) = llama4.FAMILY.published
    config = {**published.config, "num_hidden_layers": 8, **fields}
    layers = llama4.FAMILY.stack(HFConfig(config, "a test")).layers
    options = find_model("llama-4-scout").kv_cache_options()
    letters = (layer.mixers[0].spec(options) for layer in layers)
    return "".join(
        spec.kind[0].upper() if layer.mlps[0].routing(2) else spec.kind[0]
        for spec, layer in zip(letters, layers, strict=True)
        if spec is not None
    )


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({}, "CCCFCCCF"),
        ({"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 0]}, "CFCCCCCF"),
        ({"no_rope_layers": []}, "CCCFCCCF"),
        ({"layer_types": ["chunked_attention", "full_attention"] * 4}, "CFCFCFCF"),
        ({"attention_chunk_size": None}, "FFFFFFFF"),
        ({"moe_layers": [1, 7]}, "cCcfcccF"),
        ({"interleave_moe_layer_step": 2}, "cCcFcCcF"),
    ],
)
def test_llama_4_is_read_from_whatever_says_its_layers(fields: dict[str, object], pattern: str) -> None:
    assert llama_4(**fields) == pattern
