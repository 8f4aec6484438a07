"""`kvplan capacity`: what it prints, what it refuses, and what it makes of a serve command."""

import json
import shlex
import sys

import pytest

from simulator.cli import main

POOL = ("--kv-cache-memory-bytes", "20GiB")


@pytest.fixture
def capacity(monkeypatch, capsys, tmp_path):
    """Run the command in a folder of its own: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvplan", "capacity", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return (end.value.code or 0, *capsys.readouterr())

    return run


KEYS = {
    "model",
    "tensor_parallel",
    "block_size",
    "groups",
    "bytes_per_block",
    "num_blocks",
    "kv_cache_tokens",
    "kv_cache_tokens_v020",
    "max_concurrency",
    "mamba_padding_pct",
    "padding_slots_pct",
    "needed_bytes_at_max_model_len",
    "max_request_tokens",
    "max_bootable_num_seqs",
    "min_cacheable_prompt_tokens",
}


def test_json_has_every_figure_and_nothing_else_is_printed(capacity):
    code, out, err = capacity("jamba-v0.1", *POOL, "--max-model-len", "8192", "--json")
    described = json.loads(out)
    assert (code, err) == (0, "")
    assert described.keys() >= KEYS
    assert all(
        set(group) >= {"kind", "layers", "padding_layers", "block_size", "page_bytes"} for group in described["groups"]
    )


def test_a_person_reads_why_the_block_has_its_size(capacity):
    _, out, _ = capacity("qwen3.5-9b", *POOL, "--max-model-len", "8192")
    assert "528 tokens, so that a page of attention holds a state of 2.05" in out


def test_a_block_longer_than_any_prompt_is_told(capacity):
    """vLLM issue 48401: blocks of 8,320 tokens, and prompts of fewer."""
    _, out, _ = capacity("nemotron-3-super", *POOL, "--kv-cache-dtype", "fp8", "--max-model-len", "4096")
    assert "none: it would need 8,321 tokens, prompts have 4,095 at most" in out


def test_requests_of_other_lengths_are_told_too(capacity):
    _, out, _ = capacity("llama-3.1-8b", *POOL, "--request-len", "1600", "--request-len", "16", "--json")
    assert [row["admission_bytes"] for row in json.loads(out)["requests"]] == [200 << 20, 2 << 20]


def test_a_whole_serve_command_is_understood(capacity):
    command = "vllm serve google/gemma-3-27b-it -tp 2 --max-model-len 32k --port 80"
    code, out, _ = capacity(*POOL, "--", *shlex.split(command))
    assert (code, "Maximum concurrency" in out, "for 32,000 tokens" in out) == (0, True, True)
    assert "Ignored, because they do not change KV memory: --port" in out


def test_a_serve_command_says_the_same_as_its_flags(capacity):
    flags = ["--max-model-len", "8192", "--max-num-seqs", "8", "--kv-cache-dtype", "fp8", "--no-enable-prefix-caching"]
    _, ours, _ = capacity("jamba-v0.1", *POOL, *flags, "--json")
    _, theirs, _ = capacity(*POOL, "--json", "--", "vllm", "serve", "ai21labs/Jamba-v0.1", *flags)
    assert json.loads(ours) == json.loads(theirs)


MISTAKES = {
    "a pool too small": (
        ("gemma-3-27b", "--kv-cache-memory-bytes", "1GiB"),
        "needs 17.98 GiB of KV cache",
    ),
    "no budget": (("gemma-3-27b",), "--gpu: is needed"),
    "weights that do not fit": (("llama-3.1-70b", "--gpu", "l4"), "--tensor-parallel-size 8 would fit"),
    "an unknown model": (("gema-3-27b", *POOL), 'did you mean "gemma-3-27b"?'),
    "an unknown serve flag": ((*POOL, "--", "vllm", "serve", "gemma-3-27b", "--max-modl-len", "9"), "--max-model-len"),
    "too many stages": (
        ("gemma-3-1b", *POOL, "-pp", "27"),
        "gemma-3-1b has 26 layers, got 27",
    ),
    "heads that ranks cannot share": (("phi-3-medium-4k", *POOL, "-tp", "4"), "cannot be split evenly, got 4"),
    "no tokens": (
        ("gemma-3-1b", *POOL, "--request-len", "0"),
        "--request-len: must be 1 to 32,768 tokens (max_model_len), got 0",
    ),
    "no JSON": (("gemma-3-1b", *POOL, "-sc", "mtp"), "--speculative-config: must be a JSON object"),
    "another picture": (("gemma-3-1b", *POOL, "--curve", "a.gif"), "--curve: must end in .png or .svg"),
    "a state block without caching": (
        ("mamba2-2.7b", *POOL, "--mamba-block-size", "64"),
        "--mamba-block-size: needs --enable-prefix-caching",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(capacity, tmp_path, mistake):
    words, complaint = MISTAKES[mistake]
    code, out, err = capacity(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert complaint in err
    assert list(tmp_path.iterdir()) == []


# Any config.json

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
}


def test_a_config_file_stands_for_a_model(capacity, tmp_path):
    """8 layers of 4 heads of 128: 2 KiB a token and layer, 256 KiB a block; what it leaves open is said."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, _ = capacity("config.json", *POOL)
    assert code == 0
    assert "262,144" in out
    assert "1 × sliding of 512: 8 layers" in out
    assert "Not in the configuration, assumed: head_dim 128" in out


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model_type": "mistrel"}, 'model_type "mistrel" is not known; the nearest known is "mistral"'),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"sliding_window": "512"}, "sliding_window in the configuration"),
        ({"quantization_config": {"quant_method": "xyz"}}, "unknown quant_method 'xyz'"),
    ],
)
def test_what_is_not_understood_is_named(capacity, tmp_path, fields, complaint):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **fields}))
    code, _, err = capacity("config.json", *POOL)
    assert (code, err.count("\n")) == (2, 1)
    assert complaint in err


def test_a_serve_line_that_quantizes_leaves_more_for_kv(capacity):
    """Gemma-3-27b's 25.6 billion elements in 16 bits leave little of an H100."""

    def pool_bytes(*flags: str) -> int:
        line = ("vllm", "serve", "google/gemma-3-27b-it", "--max-model-len", "8192", *flags)
        described = json.loads(capacity("--gpu", "h100", "--json", "--", *line)[1])
        return described["num_blocks"] * described["bytes_per_block"]

    assert pool_bytes("-q", "fp8") - pool_bytes() == pytest.approx(25.6e9, rel=0.01)


def test_the_flag_means_what_it_means_on_a_serve_line(capacity):
    flags = ("--gpu", "h100", "--json", "-q", "fp8")
    ours = json.loads(capacity("llama-3.1-8b", *flags)[1])
    theirs = json.loads(capacity(*flags[:-2], "--", "vllm", "serve", "llama-3.1-8b", "--quantization=fp8")[1])
    assert ours["num_blocks"] == theirs["num_blocks"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("gpt-oss-20b", "-q", "fp8"), "kvplan: --quantization: openai/gpt-oss-20b is stored as mxfp4, got 'fp8'\n"),
        (("llama-3.1-8b", "-q", "fp9"), "got 'fp9'; did you mean 'fp8'?\n"),
    ],
)
def test_a_quantization_that_does_not_go_with_the_model_is_one_line(capacity, words, complaint):
    code, _, err = capacity(*words, *POOL)
    assert (code, err.count("\n")) == (2, 1)
    assert err.endswith(complaint)


def test_a_quantized_checkpoint_weighs_less(tmp_path):
    """Eight bits instead of sixteen for the matrices of the layers; embedding and head stay."""
    from models_configs import find_model

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plain = find_model(str(tmp_path / "config.json")).weight_bytes()
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "fp8"}}))
    quantized = find_model(str(tmp_path / "config.json")).weight_bytes()
    matrices = 8 * (2048 * (2048 + 2 * 512 + 2048) + 3 * 2048 * 4096)
    assert plain - quantized == pytest.approx(matrices, rel=0.002)
