"""What a person may ask for: vLLM's defaults, and one line about each mistake."""

import pytest

from models_configs.quantization_methods import METHODS
from simulator import Scenario, ScenarioError
from simulator.scenario import parse_bytes


def mistake(**values) -> str:
    """What is said about a scenario that differs from a right one in `values`."""
    with pytest.raises(ScenarioError) as error:
        Scenario(**{"model": "gemma-3-1b", **values})
    return str(error.value)


def test_a_model_is_enough():
    """Everything else has vLLM's default, or one that follows from the GPU."""
    scenario = Scenario(model="gemma-3-1b")
    assert (scenario.gpu_memory_utilization, scenario.block_size, scenario.max_num_seqs) == (0.92, None, None)
    assert (scenario.enable_prefix_caching, scenario.scheduling_policy, scenario.seed) == (None, "fcfs", 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_sqs": 3}, "unknown setting 'max_num_sqs'; did you mean 'max_num_seqs'?"),
        ({"zzz": 3}, "unknown setting 'zzz'"),
        ({"block_size": 0}, "--block-size: must be greater than or equal to 1, got 0"),
        ({"watermark": 1.5}, "--watermark: must be less than 1, got 1.5"),
        ({"gpu_memory_utilization": 0}, "--gpu-memory-utilization: must be greater than 0, got 0"),
        ({"watermark": float("nan")}, "--watermark: must be a finite number, got nan"),
        ({"step_time_s": 0.0}, "--step-time-s: must be greater than 0, got 0.0"),
        ({"rate_scale": -2.0}, "--rate-scale: must be greater than 0, got -2.0"),
        ({"seed": -1}, "--seed: must be greater than or equal to 0, got -1"),
        ({"num_gpu_blocks_override": 1}, "--num-gpu-blocks-override: must be greater than or equal to 2, got 1"),
        ({"scheduling_policy": "fifo"}, "--scheduling-policy: must be 'fcfs' or 'priority', got 'fifo'"),
        (
            {"scheduling_policy": "priorities"},
            "--scheduling-policy: must be 'fcfs' or 'priority', got 'priorities'; did you mean 'priority'?",
        ),
        (
            {"dtype": "bfloat"},
            "--dtype: must be 'auto', 'bfloat16', 'float16' or 'float32', got 'bfloat'; did you mean 'bfloat16'?",
        ),
        (
            {"kv_cache_memory_bytes": "4GX"},
            "--kv-cache-memory-bytes: must be a number of bytes such as 42949672960 or 40GiB, got '4GX'",
        ),
        (
            {"prefix_cache_retention_interval": "often"},
            "--prefix-cache-retention-interval: must be 0, a number of tokens or \"dense\", got 'often'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_line_with_flag_value_and_what_would_be_right(values, message):
    assert mistake(**values) == message


def test_a_scenario_needs_a_model():
    with pytest.raises(ScenarioError, match=r"^model: is needed$"):
        Scenario()


def test_the_first_of_several_mistakes_is_told():
    assert mistake(block_size=0, watermark=2) == "--block-size: must be greater than or equal to 1, got 0"


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size"])
def test_counts_are_whole_numbers_of_at_least_one(name):
    flag = f"--{name.replace('_', '-')}"
    assert mistake(**{name: 0}).startswith(f"{flag}: must be greater than or equal to 1, got 0")
    assert mistake(**{name: 1.5}).startswith(f"{flag}: must be a valid integer")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("42949672960", 40 * 2**30),
        ("40GiB", 40 * 2**30),
        ("40gib", 40 * 2**30),
        ("40 GiB", 40 * 2**30),
        ("40Gi", 40 * 2**30),
        ("40GB", 40 * 10**9),
        ("40G", 40 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1.5e9", 1_500_000_000),
        ("512 MiB", 2**29),
        ("7", 7),
        (7, 7),
    ],
)
def test_bytes_have_units(text, num_bytes):
    assert Scenario(model="gemma-3-1b", kv_cache_memory_bytes=text).kv_cache_memory_bytes == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-3GiB", "4 0", "4GiBB", "ten"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match="must be a number of bytes such as 42949672960 or 40GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(("written", "tokens"), [("0", 0), (0, 0), ("512", 512), (512, 512), ("dense", None)])
def test_retention_is_a_number_or_dense(written, tokens):
    scenario = Scenario(model="gemma-3-1b", prefix_cache_retention_interval=written)
    assert scenario.retention_interval == tokens


def test_equal_scenarios_are_equal():
    """So that a study can tell which of its runs it has already made."""
    text, number = (Scenario(model="gemma-3-1b", kv_cache_memory_bytes=value) for value in ("1GiB", 2**30))
    assert text == number


@pytest.mark.parametrize(
    ("written", "method"), [("awq_marlin", "awq"), ("gptq_marlin", "gptq"), ("fp8_per_tensor", "fp8"), (None, None)]
)
def test_other_names_of_a_quantization_are_known(written, method):
    assert Scenario(model="gemma-3-1b", quantization=written).quantization == method


def test_a_scenario_takes_each_quantization_that_the_catalogue_knows():
    methods = [Scenario(model="gemma-3-1b", quantization=method).quantization for method in METHODS]
    assert methods == list(METHODS)
