"""Measured kernels: they agree with their package's own estimate, and what stands for what is told."""

import json
import sys
from itertools import pairwise

import pytest

from models_configs import find_model
from simulator import Scenario, ScenarioError, simulate
from simulator.batch import Batch
from simulator.deployment import deploy
from simulator.latency import StepTimes

pytest.importorskip("aiconfigurator_core", reason="the extra `silicon` is not installed")

SCALED = "times the ratio of rooflines: there are no measured kernels of"
SERVERS = [
    ("qwen3-32b", "h100-80gb", 2, "Qwen/Qwen3-32B"),
    ("gpt-oss-120b", "h200", 2, "openai/gpt-oss-120b"),
    ("llama-3.1-8b", "a100-80gb", 1, "meta-llama/Meta-Llama-3.1-8B"),
]
STEPS = [(2048, 0, 0, 0), (4096, 8192, 0, 0), (0, 0, 1, 1000), (0, 0, 64, 128_000), (2000, 0, 48, 48_000)]
"""New and computed tokens of a prompt, decodes and their contexts together."""


def silicon(name: str, gpu: str, tensor_parallel: int = 1, **flags: object) -> StepTimes:
    scenario = Scenario(model=name, gpu=gpu, tensor_parallel_size=tensor_parallel, step_times="silicon", **flags)
    return deploy(scenario).step_times


def batch_of(name: str, new: int, computed: int, num_decodes: int, context: int) -> Batch:
    mean = context // max(num_decodes, 1)
    seen = tuple(num_decodes * reach.seen_before(mean) for reach in find_model(name).reaches)
    return Batch(((new, computed),) if new else (), num_decodes, context, seen, (0,) * len(seen))


def test_the_package_says_the_same_of_a_step() -> None:
    """Its own estimate of a forward pass; ours adds half a millisecond of the host's work, and reads tables between."""
    from aiconfigurator_core import RustForwardPassPerfModel

    for name, gpu, tensor_parallel, known_as in SERVERS:
        config = {
            "schema_version": 1, "model_name": known_as, "system_name": gpu.split("-")[0] + "_sxm", "backend": "vllm",
            "backend_version": "current", "tp_size": tensor_parallel, "pp_size": 1, "attention_dp_size": 1,
            "moe_tp_size": tensor_parallel if "oss" in name else 1, "moe_ep_size": 1, "kv_cache_dtype": "bfloat16",
        }  # fmt: skip
        theirs, ours = RustForwardPassPerfModel.from_native(json.dumps(config)), silicon(name, gpu, tensor_parallel)
        for new, computed, num_decodes, context in STEPS:
            asked = {
                "num_prefill_requests": int(new > 0), "sum_prefill_tokens": new, "sum_prefill_kv_tokens": computed,
                "num_decode_requests": num_decodes, "sum_decode_kv_tokens": context,
            }  # fmt: skip
            their_ms = theirs.estimate_forward_pass_time_ms(json.dumps({"scheduled_requests": asked}))
            (our_s,) = ours.durations_s(batch_of(name, new, computed, num_decodes, context))
            assert 1e3 * our_s - 0.5 == pytest.approx(their_ms, rel=0.03), (name, new, num_decodes)


@pytest.mark.parametrize(
    ("name", "gpu", "source"),
    [
        ("qwen3-32b", "h200", "measured kernels of Qwen/Qwen3-32B on h200"),
        (
            "gemma-3-27b",
            "h200",
            f"measured kernels of Qwen/Qwen3-32B on h200, {SCALED} gemma-3-27b",
        ),
        ("llama-3.1-8b", "rtx-4090", "roofline: there are no measured kernels on rtx-4090"),
    ],
)
def test_what_stands_for_a_model_is_told(name: str, gpu: str, source: str) -> None:
    assert silicon(name, gpu, max_model_len=4096, num_gpu_blocks_override=10_000).source == source


def test_a_model_that_the_tables_lack_is_as_its_roofline_is_to_the_near_ones() -> None:
    """Gemma-3-27b has windows in five of six layers: long contexts cost it less than Qwen3-32B."""
    ours, near = silicon("gemma-3-27b", "h200"), silicon("qwen3-32b", "h200")
    growth_s = [
        times.durations_s(batch_of(name, 0, 0, 32, 32 * 30_000))[0]
        - times.durations_s(batch_of(name, 0, 0, 32, 32 * 1_000))[0]
        for name, times in (("gemma-3-27b", ours), ("qwen3-32b", near))
    ]
    assert 0 < growth_s[0] < growth_s[1] / 2


@pytest.mark.parametrize("name", ["gpt-oss-120b", "llama-3.1-70b"])
def test_more_work_takes_longer_and_more_gpus_less(name: str) -> None:
    flags = {"quantization": None if "oss" in name else "fp8", "max_model_len": 8192}
    steps = [batch_of(name, 0, 0, num, num * 1000) for num in (1, 16, 128)]
    steps += [batch_of(name, new, 0, 128, 128_000) for new in (1000, 8000)]
    on_two, on_four = (silicon(name, "h200", tensor_parallel, **flags) for tensor_parallel in (2, 4))
    two_s, four_s = ([times.durations_s(step)[0] for step in steps] for times in (on_two, on_four))
    assert all(shorter < longer for seconds in (two_s, four_s) for shorter, longer in pairwise(seconds))
    assert all(four < two for four, two in zip(four_s[1:], two_s[1:], strict=True))


def test_keys_and_values_in_8_bits_are_read_faster() -> None:
    step = batch_of("qwen3-32b", 0, 0, 64, 64 * 16_000)
    wide_s, narrow_s = (
        silicon("qwen3-32b", "h100-80gb", 2, kv_cache_dtype=dtype).durations_s(step)[0] for dtype in ("auto", "fp8")
    )
    assert narrow_s < 0.75 * wide_s


def test_no_step_is_faster_than_the_hardware() -> None:
    """The bound that a planner prunes with."""
    from simulator.latency import Work

    times = silicon("qwen3-32b", "h100-80gb", 2)
    work = Work(1, 2048, 1, 8192, (2048 * 2049 / 2,), (0.0,))
    assert times.least_s(work) < times.durations_s(batch_of("qwen3-32b", 2048, 0, 0, 0))[0]


def test_a_run_says_where_its_step_times_are_from() -> None:
    scenario = Scenario(
        model="llama-3.1-8b", gpu="h100-80gb", step_times="silicon", request_rate=2, input_len=500, output_len=20,
        num_requests=20,
    )  # fmt: skip
    assert simulate(scenario).capacity["step_times"] == "measured kernels of meta-llama/Meta-Llama-3.1-8B on h100-80gb"


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("simulator.silicon", "simulator.nearest_kernels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(ScenarioError, match=r'--step-times: silicon needs an extra: pip install "kvplan\[silicon\]"'):
        silicon("llama-3.1-8b", "h100-80gb")
