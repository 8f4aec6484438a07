"""The published sample: which rows are replayed, on which server, and how far off some replays are."""

import pytest

from simulator.validation.sample_errors import ALL, DENSE, group_errors, sample_table
from simulator.validation.silicon_sample import Outcome, Point, Row, is_fitted_on, points_of, read_rows, replay

pytest.importorskip("aiconfigurator_core", reason="the extra `silicon` is not installed")

LLAMA = Point("llama-3.1-70b", "fp8", "fp8", "h200", 4, False, True, 0.9, 8192, 1024, 4)
FIELDS = {
    "id": "a", "model_path": "meta-llama/Llama-3.1-70B", "system": "h200_sxm", "gemm_quant_mode": "fp8",
    "backend_version": "0.15.1", "silicon_ttft_ms": "500", "silicon_tpot_ms": "12.5", "attention_dp_size": "1",
    "tp_size": "4", "moe_tp_size": "1", "moe_ep_size": "1", "isl": "8192", "osl": "1024", "batch_size": "4",
    "silicon_data_source": "source_file=2026-03-25.csv",
}  # fmt: skip


def test_every_row_is_replayed_or_left_out_for_a_reason():
    rows = list(read_rows())
    points, left_out = points_of(rows)
    assert sum(map(len, points.values())) + left_out.total() == len(rows) == 1196
    assert left_out == {
        "a copy of another row": 161,
        "attention is data-parallel, which is not modelled": 79,
        "experts are on more GPUs than attention": 19,
        "faster than the GPU's peaks allow: its prompts must have been cached": 8,
    }


def test_constants_were_fitted_on_a_tenth():
    points, _ = points_of(read_rows())
    rows = [row for rows in points.values() for row in rows]
    assert sum(map(is_fitted_on, rows)) < len(rows) / 10


def test_a_row_is_a_server_under_load():
    assert points_of([FIELDS]) == (
        {LLAMA: [Row("a", "meta-llama/Llama-3.1-70B", "h200", "fp8", "0.15.1", 0.5, 0.0125)]},
        {},
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"attention_dp_size": "4"}, "attention is data-parallel, which is not modelled"),
        (
            {"model_path": "openai/gpt-oss-120b", "gemm_quant_mode": "nvfp4", "moe_ep_size": "16"},
            "experts are on more GPUs than attention",
        ),
        (
            {"silicon_ttft_ms": "5", "silicon_tpot_ms": "0.2"},
            "faster than the GPU's peaks allow: its prompts must have been cached",
        ),
    ],
)
def test_why_a_row_is_left_out(changed, why):
    assert points_of([FIELDS | changed]) == ({}, {why: 1})


def test_the_same_figures_twice_are_one_measurement():
    points, left_out = points_of([FIELDS, FIELDS | {"id": "b"}, FIELDS | {"id": "c", "silicon_tpot_ms": "11.3"}])
    assert [row.id for row in points[LLAMA]] == ["a", "c"]
    assert left_out == {"a copy of another row": 1}


def test_unknown_clients_ran_servers_that_schedule_synchronously():
    ((point, _),) = points_of([FIELDS | {"silicon_data_source": "source_file=/home/someone.csv"}])[0].items()
    assert not point.async_scheduling


@pytest.mark.parametrize(("step_times", "most"), [("silicon", 0.1), ("roofline", 0.25)])
def test_a_replay_is_near_what_was_measured(step_times, most):
    """Llama-3.1-70B in FP8 on four H200s, four requests of 8,192 and 1,024 tokens in flight: 469 and 11.3 ms."""
    outcome = replay(LLAMA, step_times)
    assert outcome.tpot_s == pytest.approx(0.01127, rel=most)
    assert outcome.ttft_s == pytest.approx(0.4694, rel=2 * most)


def test_errors_are_told_by_kind():
    gpt = LLAMA._replace(model="gpt-oss-120b", quantization=None)
    rows = [Row("a", "", "h200", "fp8", "", 1.0, 0.010), Row("b", "", "h200", "fp8", "", 1.0, 0.008)]
    table = sample_table({LLAMA: rows, gpt: rows[:1]}, {LLAMA: Outcome(1.5, 0.010, ""), gpt: Outcome(0.5, 0.005, "")})
    tpot = {group.name: (group.num_rows, group.median, group.bias) for group in group_errors(table, "tpot")}
    assert tpot == {
        ALL: (3, 0.25, 0.0),
        DENSE: (2, 0.125, 0.125),
        "gpt-oss-120b, fp8, h200": (1, 0.5, -0.5),
        "llama-3.1-70b, fp8, h200": (2, 0.125, 0.125),
    }
