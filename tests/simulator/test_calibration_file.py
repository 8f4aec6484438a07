"""A calibration file says which server it is of, and is refused where it cannot be right."""

from dataclasses import replace
from datetime import date
from math import inf
from pathlib import Path

import pytest

from simulator import Scenario
from simulator.calibration_file import Calibration, KindError, calibration_text, read_calibration
from simulator.deployment import deploy
from simulator.efficiencies import efficiencies_of
from simulator.hardware import find_gpu
from simulator.latency import ConstantStepTimes
from simulator.scenario import ScenarioError
from simulator.study_file import Study, read_study
from tests.simulator.measured_steps import ACHIEVED, decode, roofline_of

FITTED = Calibration(
    model="llama-3.1-8b", gpu="l4", tensor_parallel_size=1, dtype="bfloat16", kv_cache_dtype="auto",
    measured="steps", source='a "b".csv', num_rows=7, date=date(2026, 11, 30),
    errors=(KindError(kind="decode only", num_rows=7, median=0.01, p90=0.03, bias=-0.002),),
    fitted=("matmul_compute",), efficiencies=ACHIEVED,
)  # fmt: skip
SERVER = {"model": "llama-3.1-8b", "gpu": "l4", "max_model_len": 4096}


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "l4.toml"
    path.write_text(calibration_text(FITTED))
    return path


def refusal(file: Path, **server) -> str:
    with pytest.raises(ScenarioError) as error:
        _ = deploy(Scenario(**{**SERVER, "step_times": str(file), **server})).step_times
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(file), "FILE")


def test_what_is_written_is_read_again(file):
    assert read_calibration(file) == FITTED


def test_a_server_takes_its_step_times_from_the_file(file):
    step_times = deploy(Scenario(**SERVER, step_times=str(file))).step_times
    batch = decode(16, 700)
    assert step_times.durations_s(batch) == roofline_of(gpu="l4")(ACHIEVED).durations_s(batch)


def test_without_a_file_it_is_the_roofline_as_it_comes():
    batch = decode(16, 700)
    as_it_comes = roofline_of(gpu="l4")(efficiencies_of(find_gpu("l4"), async_scheduling=True))
    assert deploy(Scenario(**SERVER)).step_times.durations_s(batch) == as_it_comes.durations_s(batch)


def test_a_constant_needs_no_gpu():
    assert deploy(Scenario(model="llama-3.1-8b", num_gpu_blocks_override=9000, step_time_s=0.5)).step_times == (
        ConstantStepTimes(0.5)
    )


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (
            {"gpu": "h100-80gb"},
            "FILE was fitted on l4, not on h100-80gb: what a server reaches of its hardware differs",
        ),
        (
            {"tensor_parallel_size": 2},
            "FILE was fitted with --tensor-parallel-size 1, not 2: smaller slices reach less of the hardware",
        ),
        ({"step_time_s": 0.1}, "FILE does not go with --step-time-s: say one of them"),
        ({"step_times": "rofline"}, "must be roofline, silicon or a FILE.toml, got 'rofline'; did you mean roofline?"),
        ({"step_times": "no.toml"}, "no.toml cannot be read: No such file or directory"),
    ],
)
def test_a_server_that_it_does_not_fit_is_refused(file, server, problem):
    assert refusal(file, **server) == f"--step-times: {problem}"


@pytest.mark.parametrize(
    ("written", "meant", "problem"),
    [
        (
            "kv_bandwidth = 0.88",
            "",
            "efficiencies.kv_bandwidth is missing: was the file written by `kvplan calibrate`?",
        ),
        ("kv_bandwidth =", "kv_bandwith =", "unknown efficiencies.kv_bandwith; did you mean kv_bandwidth?"),
        ("step_s = 0.0021", "step_s = 0.0021\nstep_ms = 2", "unknown efficiencies.step_ms; did you mean step_s?"),
        ("kv_bandwidth = 0.88", "kv_bandwidth = 88", "efficiencies.kv_bandwidth must be less than or equal to 1.2"),
        ("kv_bandwidth = 0.88", "kv_bandwidth = 0", "efficiencies.kv_bandwidth must be greater than 0, got 0"),
        ("step_s = 0.0021", "step_s = -1", "efficiencies.step_s must be greater than or equal to 0, got -1"),
        ('gpu = "l4"\n', "", "gpu is missing: was the file written by `kvplan calibrate`?"),
        ("tensor_parallel_size = 1", "tensor_parallel_size = 0", "tensor_parallel_size must be greater than or equal"),
        ("num_rows = 7\ndate", "num_row = 7\ndate", "unknown num_row; did you mean num_rows?"),
        ("[efficiencies]", "efficiencies]", "is not TOML:"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_read_with_care(file, written, meant, problem):
    text = calibration_text(FITTED)
    assert written in text
    file.write_text(text.replace(written, meant, 1))
    assert problem in refusal(file)


def test_another_model_is_said():
    (note,) = FITTED.notes("gemma-3-1b", "bfloat16", "auto")
    assert note == "fitted with model llama-3.1-8b, not gemma-3-1b, so it carries over in part"
    assert FITTED.notes("llama-3.1-8b", "bfloat16", "auto") == []


def test_no_overlap_but_one_is_infinite(file):
    slower = FITTED.model_copy(update={"efficiencies": replace(ACHIEVED, matmul_overlap=inf)})
    file.write_text(calibration_text(slower))
    assert read_calibration(file).efficiencies.matmul_overlap == inf
    file.write_text(calibration_text(FITTED).replace("step_s = 0.0021", "step_s = inf"))
    assert "efficiencies.step_s must be less than inf" in refusal(file)


# In a study


def study(folder: Path, gpu: str = "l4") -> Study:
    (folder / "study.toml").write_text(
        f'[base]\nmodel = "llama-3.1-8b"\ngpu = "{gpu}"\nmax_model_len = 4096\nstep_times = "l4.toml"\n'
        "[grid]\nnum_requests = [2, 3]\n"
    )
    return read_study(folder / "study.toml")


def test_a_study_finds_the_file_beside_its_own(file, tmp_path):
    assert {point.point.scenario.step_times for point in study(tmp_path).points} == {str(file)}


def test_a_point_is_another_one_with_another_calibration(file, tmp_path):
    """Or a study would go on with what the one before has found."""
    before = [point.point.key for point in study(tmp_path).points]
    file.write_text(calibration_text(FITTED).replace("kv_bandwidth = 0.88", "kv_bandwidth = 0.7"))
    assert set(before).isdisjoint(point.point.key for point in study(tmp_path).points)


def test_a_study_says_where_the_file_is_wrong(file, tmp_path):
    file.write_text("")
    with pytest.raises(ScenarioError, match="step_times"):
        study(tmp_path)
