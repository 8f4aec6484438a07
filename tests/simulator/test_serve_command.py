"""A server's whole command line: what it says about KV memory, what it does not, and what cannot be planned."""

import shlex

import pytest

from simulator import serve_flags
from simulator.scenario import ScenarioError
from simulator.serve_command import parse_serve_command

A_NUMBER = "must be a number such as 32768, 32k (32,000) or 32K (32,768)"


def settings(line: str) -> dict[str, object]:
    """What a line states besides its model, which is M."""
    stated = parse_serve_command(shlex.split(line)).settings
    assert stated.pop("model") == "M"
    return stated


def mistake(line: str) -> str:
    with pytest.raises(ScenarioError) as error:
        parse_serve_command(shlex.split(line))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_line_from_a_recipe_becomes_settings_and_a_list_of_what_does_not_matter():
    command = parse_serve_command(
        shlex.split(
            "CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=DEBUG vllm serve google/gemma-3-27b-it -tp 2 "
            "--max-model-len 32768 --served-model-name gemma g3 --gpu-memory-utilization=.9 --host 0.0.0.0 --port=8000 "
            "--no-enable-prefix-caching --enable-auto-tool-choice -dp 2 --quantization fp8 -O3 --port 8001"
        )
    )
    assert command.settings == {
        "model": "google/gemma-3-27b-it",
        "tensor_parallel_size": 2,
        "max_model_len": 32768,
        "gpu_memory_utilization": ".9",
        "enable_prefix_caching": False,
        "quantization": "fp8",
    }
    assert command.ignored == (
        *("CUDA_VISIBLE_DEVICES", "VLLM_LOGGING_LEVEL", "--served-model-name", "--host", "--port"),
        *("--enable-auto-tool-choice", "-dp", "-O"),
    )


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve M -tp 2",
        "/opt/venv/bin/vllm serve M -tp 2",
        "serve M -tp 2",
        "M -tp 2",
        "vllm serve -tp 2 M",
        "vllm serve -- M -tp 2",
        "vllm serve --model M -tp 2",
        "vllm serve --model=M -tp 2",
        "vllm serve --served-model-name a b -tp 2 M",
        "python3.11 -m vllm.entrypoints.openai.api_server --model M -tp 2",
        "/usr/bin/python -m vllm.entrypoints.cli.main serve M -tp 2",
    ],
)
def test_a_server_is_started_in_many_ways(line):
    assert settings(line) == {"tensor_parallel_size": 2}


def test_a_folder_may_be_called_vllm():
    assert parse_serve_command(["/models/vllm", "-tp", "2"]).settings["model"] == "/models/vllm"


@pytest.mark.parametrize(
    "flag",
    ["--tensor-parallel-size 2", "--tensor_parallel_size=2", "--tensor-parallel 2", "-tp=2", "-t 2", "-tp 1 -tp 2"],
)
def test_a_flag_is_written_in_many_ways_and_the_last_wins(flag):
    assert settings(f"vllm serve M {flag}") == {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("flag", "stated"),
    [
        ("--max-model-len 32k", {"max_model_len": 32_000}),
        ("--max-model-len 32K", {"max_model_len": 32_768}),
        ("--max-model-len 1.5m", {"max_model_len": 1_500_000}),
        ("--max-model-len auto", {"max_model_len": "auto"}),
        ("--max-model-len -1", {"max_model_len": "auto"}),
        ("--max-num-batched-tokens 8K", {"max_num_batched_tokens": 8192}),
        ("--kv-cache-memory-bytes 40G", {"kv_cache_memory_bytes": 40 << 30}),
        ("--kv-cache-memory-bytes 40g --kv-cache-memory-bytes None", {}),
        ("--prefix-cache-retention-interval None", {"prefix_cache_retention_interval": "dense"}),
        ("-q awq_marlin", {"quantization": "awq_marlin"}),
        ("-q fp8 --quantization None", {}),
        ("--prefix-cache-retention-interval 4096", {"prefix_cache_retention_interval": 4096}),
        ("--dtype half --kv-cache-dtype fp8", {"dtype": "float16", "kv_cache_dtype": "fp8"}),
        ("--device-memory-utilization 0.8 --watermark .1", {"gpu_memory_utilization": "0.8", "watermark": ".1"}),
        ("-ep -pp 2", {"enable_expert_parallel": True, "pipeline_parallel_size": 2}),
        ("--no_async-scheduling", {"async_scheduling": False}),
        ("--no-enable-prefix-caching --enable-prefix-caching", {"enable_prefix_caching": True}),
        ("--mamba-block-size 512 --block-size 32", {"mamba_block_size": 512, "block_size": 32}),
    ],
)
def test_values_are_read_as_vllm_reads_them(flag, stated):
    assert settings(f"vllm serve M {flag}") == stated


@pytest.mark.parametrize(
    "flag",
    [
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""",
        """-sc='{"method": "mtp", "num-speculative-tokens": 3}'""",
        "--speculative-config.method mtp --speculative_config.num_speculative_tokens=3",
        "-sc.method mtp -sc.num_speculative_tokens 3",
        "--spec-method mtp --spec-tokens 3",
        "-sc.method mtp --spec-tokens 3",
        """-sc '{"method": "ngram"}' -sc '{"method": "mtp", "num_speculative_tokens": 3}'""",
    ],
)
def test_drafts_are_configured_in_json_by_dotted_keys_or_by_flags_of_their_own(flag):
    assert settings(f"vllm serve M {flag}") == {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}


def test_dotted_keys_nest_add_to_lists_and_take_any_next_word():
    line = "M -sc.a.b 2k -sc.a.c -7 -sc.l+ x,y -sc.l+=z -sc.t true -sc.a.d --x"
    assert settings(line) == {
        "speculative_config": {"a": {"b": 2000, "c": -7, "d": "--x"}, "l": ["x", "y", "z"], "t": True}
    }


@pytest.mark.parametrize(
    ("flag", "ignored"),
    [
        ("--seed -1", ["--seed"]),
        ("--chat-template '-- a sentence'", ["--chat-template"]),
        ("""--default-chat-template-kwargs '{"a": 1}'""", ["--default-chat-template-kwargs"]),
        (
            "--compilation-config.level 3 -cc '{}' -O.level=3 -O 2",
            ["--compilation-config.level", "-cc", "-O.level", "-O"],
        ),
        ("--hf-token -ac.backend FLASH_ATTN", ["--hf-token", "-ac.backend"]),
        ("--cudagraph-capture-sizes 1 2 4 --disable-log-stats", ["--cudagraph-capture-sizes", "--disable-log-stats"]),
        ("--swap-space 4 --calculate-kv-scales", ["--swap-space", "--calculate-kv-scales"]),
        ("-dcp 1 --cpu-offload-gb 0.0 --runner generate", ["-dcp", "--cpu-offload-gb", "--runner"]),
        ("--no-enable-lora --enable_chunked_prefill", ["--no-enable-lora", "--enable_chunked_prefill"]),
    ],
)
def test_what_changes_no_kv_memory_is_named_as_it_was_written(flag, ignored):
    command = parse_serve_command(shlex.split(f"vllm serve M {flag}"))
    assert (command.settings, list(command.ignored)) == ({"model": "M"}, ignored)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm serve -tp 2", "model: is needed, as in: vllm serve google/gemma-3-27b-it"),
        ("vllm serve M N", "model: is 'M' already, got 'N'"),
        ("vllm bench throughput", "vllm: must be followed by \"serve\", got 'bench'"),
        (
            "python -m sglang",
            "python -m: must start vllm.entrypoints.cli.main or vllm.entrypoints.openai.api_server, got 'sglang'",
        ),
        ("M --config f.yaml", "--config: kvplan reads no file of flags; put the flags on the line"),
        ("M --max-model-length 9", "--max-model-length: vLLM 0.32 has no such flag; did you mean --max-model-len?"),
        ("M -tp2", "-tp2: vLLM 0.32 has no such flag; did you mean -tp?"),
        ("M --no-headless", "--no-headless: vLLM 0.32 has no such flag; did you mean --headless?"),
        ("M --max-num 9", "--max-num: is the beginning of 6 flags of vLLM, --max-num-active-seqs the first"),
        ("M --max-model-len", "--max-model-len: needs a value"),
        ("M --max-model-len -tp 2", "--max-model-len: needs a value, got the flag '-tp'"),
        (
            "M --max-model-len 1.5M",
            f"--max-model-len: {A_NUMBER}, got '1.5M'; did you mean 1500000?",
        ),
        (
            "M --kv-cache-memory-bytes 40GiB",
            f"--kv-cache-memory-bytes: {A_NUMBER}, got '40GiB'; did you mean 42949672960?",
        ),
        ("M --max-num-seqs 1K", "--max-num-seqs: must be a whole number, got '1K'; did you mean 1024?"),
        ("M -tp two", "-tp: must be a whole number, got 'two'"),
        ("M --block-size.x 3", "--block-size.x: takes a value without keys, as in --block-size 3"),
        (
            "M --enable-prefix-caching=false",
            "--enable-prefix-caching: takes no value, got 'false'; did you mean --no-enable-prefix-caching?",
        ),
        ("M --async-scheduling True", "--async-scheduling: takes no value, got 'True'"),
        (
            "M -sc mtp",
            '-sc: must be JSON such as \'{"method": "mtp", "num_speculative_tokens": 1}\', got \'mtp\'',
        ),
        (
            "M -sc.method mtp --speculative-config.num_speculative_tokens 3",
            "--speculative-config: is written in two ways; put all of its keys in one JSON object",
        ),
        (
            "M -sc.method mtp --spec-method ngram",
            "--spec-method: --speculative-config has 'method' as well, got 'ngram'",
        ),
        ("M --spec-tokens x", "--spec-tokens: must be a whole number, got 'x'"),
        ("M -dcp 2", "-dcp: kvplan does not model a context split over ranks; it must be 1, got '2'"),
        (
            "M --cpu-offload-gb 10",
            "--cpu-offload-gb: kvplan does not model weights kept in the host's memory; it must be 0, got '10'",
        ),
        (
            "M --kv-transfer-config.kv_connector X",
            "--kv-transfer-config.kv_connector: kvplan does not model KV moved elsewhere; plan without it, got 'X'",
        ),
        ("M --enable-lora", "--enable-lora: kvplan does not model adapters; plan without it"),
        (
            "M --no-enable-chunked-prefill",
            "--no-enable-chunked-prefill: kvplan does not model prompts that run in one step; plan without it",
        ),
    ],
)
def test_a_mistake_is_one_line_with_flag_value_and_what_would_be_right(line, message):
    assert mistake(line) == message


def test_every_flag_stands_in_one_table():
    tables = [
        set(serve_flags.HONOURED),
        serve_flags.IGNORED,
        serve_flags.IGNORED_SWITCHES,
        set(serve_flags.NOT_MODELLED),
        {name.removeprefix("no-") for name in serve_flags.NOT_MODELLED_SWITCHES},
    ]
    names = set().union(*tables)
    assert len(names) == sum(map(len, tables))
    assert set(serve_flags.SPELLINGS.values()) | serve_flags.SEVERAL_VALUES | serve_flags.ONE_WAY_SWITCHES <= names
    assert set(serve_flags.OFF) <= set(serve_flags.NOT_MODELLED)


@pytest.mark.parametrize("table", ["HONOURED", "NOT_MODELLED", "NOT_MODELLED_SWITCHES", "OFF", "SPELLINGS"])
def test_tables_are_in_order(table):
    assert list(getattr(serve_flags, table)) == sorted(getattr(serve_flags, table))
