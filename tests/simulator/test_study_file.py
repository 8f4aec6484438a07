"""What a study says, and that all of its mistakes are told at once, before anything runs."""

from pathlib import Path

import pytest

from simulator.fleet_options import FleetOptions
from simulator.scenario import ScenarioError
from simulator.study_file import read_study
from tests.simulator.studies import SMALL, study_of, write_study


def mistakes_in(folder: Path, text: str, **options) -> list[str]:
    """The lines after the first."""
    with pytest.raises(ScenarioError) as refused:
        read_study(write_study(folder, text), **options)
    first, *lines = str(refused.value).splitlines()
    assert first.endswith("has a mistake, nothing was run:" if len(lines) == 1 else "mistakes, nothing was run:")
    return [line.strip() for line in lines]


# ---------------------------------------------------------------------------------------------- what it says


def test_a_grid_is_every_combination_the_last_axis_first(tmp_path):
    study = study_of(tmp_path)
    assert [study.label(point) for point in study.points] == [
        "block_size 16, max_num_seqs 1",
        "block_size 16, max_num_seqs 2",
        "block_size 16, max_num_seqs 8",
        "block_size 32, max_num_seqs 1",
        "block_size 32, max_num_seqs 2",
        "block_size 32, max_num_seqs 8",
    ]
    assert (study.name, study.is_grid) == ("study", True)


def test_hyphens_and_underscores_are_the_same(tmp_path):
    other = SMALL.replace("max-model-len", "max_model_len").replace("block-size", "block_size")
    keys = [point.point.key for point in study_of(tmp_path).points]
    assert [point.point.key for point in study_of(tmp_path, other).points] == keys


def test_the_order_in_a_file_does_not_change_a_points_hash(tmp_path):
    turned = """
    [grid]
    max-num-seqs = [8, 2, 1]
    block-size = [32, 16]
    [base]
    num-requests = 4
    max-model-len = 4096
    gpu = "l40s"
    model = "llama-3.1-8b"
    """
    keys = {point.point.key for point in study_of(tmp_path).points}
    assert {point.point.key for point in study_of(tmp_path, turned).points} == keys


def test_a_list_varies_what_its_points_state(tmp_path):
    study = study_of(
        tmp_path,
        """
        name = "three-servers"
        [base]
        model = "llama-3.1-8b"
        gpu = "l40s"
        [[point]]
        [[point]]
        gpu = "h200"
        replicas = 2
        router = "least-loaded"
        [[point]]
        kv-cache-dtype = "fp8"
        """,
    )
    assert study.name == "three-servers"
    assert study.axes == {
        "gpu": ("l40s", "h200"), "replicas": (1, 2), "router": (None, "least-loaded"), "kv_cache_dtype": ("auto", "fp8")
    }  # fmt: skip
    assert [study.label(point) for point in study.points] == [
        "l40s", "h200, replicas 2, router least-loaded", "l40s, kv_cache_dtype fp8"
    ]  # fmt: skip
    assert study.points[1].point.fleet == FleetOptions(num_replicas=2, router="least-loaded")


def test_points_that_are_repeated_are_dropped(tmp_path):
    study = study_of(tmp_path, SMALL.replace("[16, 32]", "[16, 32, 16]"))
    assert len(study.points) == 6


def test_points_that_resolve_to_the_same_run_share_its_hash(tmp_path):
    study = study_of(tmp_path, SMALL.replace("block-size = [16, 32]", 'gpu = ["l40s", "L40S"]'))
    assert (len(study.points), len({point.point.key for point in study.points})) == (6, 3)


def test_a_router_says_nothing_of_a_single_server(tmp_path):
    study = study_of(
        tmp_path,
        """
        [base]
        model = "llama-3.1-8b"
        gpu = "l40s"
        router = "prefix-aware"
        router-staleness-s = 1
        [grid]
        replicas = [1, 2]
        """,
    )
    assert [point.point.fleet for point in study.points] == [
        FleetOptions(num_replicas=1),
        FleetOptions(num_replicas=2, router="prefix-aware", staleness_s=1),
    ]


def test_files_are_found_beside_the_study(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    trace = '{"timestamp": 0, "input_length": 64, "output_length": 8, "hash_ids": [1]}\n'
    (tmp_path / "sub" / "trace.jsonl").write_text(trace, encoding="utf-8")
    text = SMALL.replace("num-requests = 4", 'trace = "trace.jsonl"')
    study = study_of(tmp_path / "sub", text)
    assert study.points[0].point.scenario.trace == tmp_path / "sub" / "trace.jsonl"


def test_prices_and_an_slo_are_the_studys_own(tmp_path):
    study = study_of(tmp_path, SMALL + "[slo]\nttft_p99_s = 2\n[prices]\nL40S = 0.5\n")
    assert (study.slo, study.prices["l40s"].dollars_per_hour) == ({"ttft_p99_s": 2}, 0.5)


def test_the_example_of_the_documentation_can_be_read():
    study = read_study(Path(__file__).parents[2] / "docs" / "example_study.toml")
    assert (study.name, len(study.points), study.is_grid) == ("example", 9, True)


# -------------------------------------------------------------------------------------------------- mistakes


def test_all_mistakes_are_told_at_once_with_their_places(tmp_path):
    text = """
    nam = "x"
    [base]
    model = "gemma-3-27"
    gpu = "h1000"
    max-num-seqs = 0
    max_num_seqs = 3
    tracee = "a"
    trace = "nowhere.jsonl"
    kv_cache_dtype = "fp9"
    replicas = "two"
    back-with = "cpu"
    [grid]
    block-size = 16
    grouping = ["vllm", "gdc"]
    seed = [1, -1]
    router = ["round-robbin"]
    [slo]
    ttft_p98_s = 2
    tpot_p99_s = 0
    [prices]
    h300 = 2
    h200 = "much"
    """
    told = mistakes_in(tmp_path, text)
    assert [line.replace(f"{tmp_path}/", "") for line in told] == [
        "nam: is not known; did you mean name?",
        '[base] model: unknown model "gemma-3-27"; did you mean "gemma-3-27b"?',
        '[base] gpu: unknown gpu "h1000"; did you mean "h100"?',
        "[base] max-num-seqs: must be greater than or equal to 1, got 0",
        "[base] max_num_seqs: is said twice, as max_num_seqs too",
        "[base] tracee: is not known; did you mean trace?",
        "[base] trace: nowhere.jsonl: no such file",
        (
            "[base] kv_cache_dtype: must be 'auto', 'bfloat16', 'float16', 'float32', 'fp8', 'fp8_e4m3' or 'fp8_e5m2',"
            " got 'fp9'; did you mean 'fp8'?"
        ),
        "[base] replicas: must be a whole number, got 'two'",
        "[base] back-with: measures this machine, not the server: it is not for studies",
        "[grid] block-size: must be a list of values, got 16",
        "[grid] grouping, value 2: unknown grouping 'gdc'; did you mean 'gcd'?",
        "[grid] seed, value 2: must be greater than or equal to 0, got -1",
        "[grid] router, value 1: unknown router 'round-robbin'; did you mean 'round-robin'?",
        "[slo] ttft_p98_s: is not known; did you mean ttft_p99_s?",
        "[slo] tpot_p99_s: must be a number of seconds above 0, got 0",
        '[prices] h300: unknown gpu "h300"; did you mean "h200"?',
        "[prices] h200: must be dollars an hour, a number of at least 0, got 'much'",
    ]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "there is nothing to vary: add a [grid] of lists, or [[point]] tables"),
        ("[grid]", "[grid]: must be a table of lists such as block-size = [16, 32]"),
        ("grid = 3", "[grid]: must be a table of lists such as block-size = [16, 32]"),
        ('base = "x"\n[grid]\nseed = [1]', "[base]: must be a table of settings, got 'x'"),
        ("[grid]\nseed = [1, 2]", "seed 1: model: is needed, in [base] or for every point"),
        (SMALL + "[[point]]\n", "[grid] and [[point]]: a study has one of them, not both"),
        (SMALL + "[[base.x]]\n", "[base] x: is not known"),
        ('name = "a/b"\n' + SMALL, "name: must be letters, digits, and any of . _ - between them, got 'a/b'"),
        (SMALL + "slo = 3", "[grid] slo: is not known"),
        (SMALL.replace("[grid]", "[slo]\nttft_p99_s = true\n[grid]"),
         "[slo] ttft_p99_s: must be a number of seconds above 0, got True"),
        (SMALL.replace("num-requests", "input-len"),
         "block_size 16, max_num_seqs 1: --input-len: goes with --request-rate only"),
        (SMALL.replace("num-requests = 4", 'router = "least-loaded"'),
         "router: there is nothing to choose from: no point has several replicas"),
        (SMALL.replace("num-requests = 4", "replicas = 2\nrouter_staleness_s = 1"),
         "router_staleness_s: goes with router prefix-aware only, which no point has"),
    ],
    ids=str,
)  # fmt: skip
def test_one_mistake_is_told_alone(text, mistake, tmp_path):
    assert mistakes_in(tmp_path, text) == [mistake]


def test_a_grid_that_is_too_large_needs_a_word(tmp_path):
    text = SMALL.replace("[1, 2, 8]", str(list(range(1, 601))))
    assert mistakes_in(tmp_path, text) == [
        "[grid]: makes 1,200 points (2 × 600), more than 1,000; if so many are meant, say --max-points 1200"
    ]
    assert len(read_study(tmp_path / "study.toml", most_points=1200).points) == 1200


def test_what_is_no_toml_is_said(tmp_path):
    with pytest.raises(ScenarioError, match=r"study.toml is not TOML: .*at end of document"):
        read_study(write_study(tmp_path, "[base"))
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        read_study(tmp_path / "nowhere.toml")


def test_quantization_may_vary_like_any_other_setting(tmp_path):
    """Weights of different bytes leave different pools."""
    text = '[base]\nmodel = "llama-3.1-8b"\ngpu = "l40s"\nmax-model-len = 4096\n[grid]\nquantization = ["fp8", "awq"]\n'
    study = study_of(tmp_path, text)
    assert [study.label(point) for point in study.points] == ["quantization fp8", "quantization awq"]
    assert len({point.point.key for point in study.points}) == 2
