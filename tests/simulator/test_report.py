"""The report: its verdict, its words and its one file."""

import copy
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from simulator import report
from simulator.report import judge, render_report, write_report
from simulator.summary_table import format_bytes, format_number, format_seconds, format_share, summary_lines
from tests.simulator.fake_result import SCENARIO, busy_hour, make_requests, make_result, make_steps


class Page(HTMLParser):
    """What a browser would fetch, and which ids there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.fetched += [
            values[key] for key in ("src", "href", "xlink:href") if not values.get(key, "#").startswith("#")
        ]
        self.ids += [values["id"]] if "id" in values else []
        self.labels += [values["aria-label"]] if values.get("role") == "img" else []


@pytest.fixture
def calm():
    """The summary of a run in which all went well."""
    steps = make_steps(running=[2, 2], held_blocks=[50, 50])
    return copy.deepcopy(make_result(make_requests(arrival_s=[0.0, 0.0]), steps).summary)


def test_a_calm_run_held(calm):
    assert judge(calm, SCENARIO).text == (
        "It held: all 2 requests finished, 0% of prompt tokens came from the prefix cache, none was preempted, "
        "and KV cache usage was 50% on average and 50% at most. Nothing seems to bind."
    )


def test_preemptions_are_strain_and_mean_memory(calm):
    calm["preemptions"] = {"total": 3, "requests": 2}
    verdict = judge(calm, SCENARIO)
    assert (verdict.level, verdict.answer) == ("strained", "It held under strain")
    assert "2 requests were preempted 3 times in all" in verdict.facts
    assert verdict.limit.startswith("KV cache memory")


def test_a_queue_before_a_full_pool_means_memory(calm):
    calm["waiting"], calm["kv_cache_usage"] = {"mean": 1.0, "max": 9}, {"mean": 0.9, "max": 0.96}
    assert judge(calm, SCENARIO).limit == ("KV cache memory seems to bind: the pool was full while requests waited.")


def test_a_queue_before_enough_running_requests_means_max_num_seqs(calm):
    calm["waiting"], calm["running"] = {"mean": 1.0, "max": 9}, {"mean": 40.0, "max": 48}
    assert judge(calm, SCENARIO).limit == "max_num_seqs seems to bind: 48 requests ran while others waited."


def test_a_queue_before_free_blocks_means_speed(calm):
    calm["waiting"] = {"mean": 1.0, "max": 9}
    assert judge(calm, SCENARIO).limit.startswith("The speed of the steps")
    assert judge(calm, {}).limit.startswith("The speed of the steps")


def test_a_short_queue_is_no_strain(calm):
    calm["waiting"], calm["kv_cache_usage"] = {"mean": 0.9, "max": 9}, {"mean": 0.9, "max": 1.0}
    assert judge(calm, SCENARIO).level == "held"


def test_unfinished_requests_mean_that_it_did_not_hold(calm):
    calm["requests"] |= {"arrived": 5, "unfinished": 3}
    verdict = judge(calm, SCENARIO)
    assert (verdict.level, verdict.answer) == ("failed", "It did not hold")
    assert verdict.facts.startswith("2 of 5 requests finished (3 unfinished)")


def test_rejections_are_named_and_no_strain(calm):
    calm["requests"] |= {"arrived": 4, "rejected": 2, "rejected_reasons": {"too long": 2}}
    verdict = judge(calm, SCENARIO)
    assert (verdict.level, verdict.answer) == ("held", "It held, rejections apart")
    assert verdict.limit == "Rejected: too long. Nothing else seems to bind."


def test_a_server_that_rejects_all_did_not_hold(calm):
    calm["requests"] = {
        "arrived": 2, "finished": 0, "rejected": 2, "rejected_reasons": {"too long": 2}, "unfinished": 0,
    }  # fmt: skip
    assert judge(calm, SCENARIO).level == "failed"


def test_no_requests_is_nothing_to_do():
    summary = make_result(make_requests(arrival_s=[]), make_steps(running=[])).summary
    assert judge(summary, SCENARIO).text == "Nothing to do: no request arrived. Nothing seems to bind."


def test_the_page_needs_nothing_else():
    text = render_report(busy_hour())
    assert Page(text).fetched == []
    assert not re.search(r"@import|url\((?!#)|<script|<link", text)
    assert len(text) < 1_500_000


def test_ids_are_unique_and_all_references_lead_somewhere():
    text = render_report(busy_hour())
    ids = Page(text).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|xlink:href=")#([\w-]+)', text)) <= set(ids)


def test_figures_have_words_and_take_the_pages_colour():
    text = render_report(busy_hour())
    labels = Page(text).labels
    assert labels[0] == "KV cache usage: held blocks 52.9% of the pool on average, 100% at most."
    assert len(labels) == 5
    assert "currentColor" in text


def test_tables_show_summary_groups_and_scenario():
    text = render_report(busy_hour())
    for name, _ in summary_lines(busy_hour().summary):
        assert f'<th scope="row">{name}</th>' in text
    assert text.count('<th scope="row">sliding window</th>') == 6
    assert '<th scope="row">scheduler.max_num_seqs</th><td>48</td>' in text
    assert "<title>gemma-3-27b on 2 × h100-80gb – kvplan</title>" in text


def test_what_a_person_wrote_is_escaped():
    requests = make_requests(status=["rejected", "finished"], reason=["<b>", None])
    text = render_report(make_result(requests, make_steps(running=[1])))
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize("num_blocks", [1, 101])
def test_runs_with_little_to_show_are_reported(num_blocks):
    steps = make_steps(running=[1])
    never = {"first_scheduled_s": [np.nan], "first_token_s": [np.nan], "finish_s": [np.nan], "status": ["unfinished"]}
    for requests in (make_requests(arrival_s=[]), make_requests(arrival_s=[0.0], **never)):
        assert "</html>" in render_report(make_result(requests, steps, num_blocks=num_blocks))


def test_equal_results_give_equal_files(tmp_path):
    for name in ("first.html", "second.html"):
        write_report(busy_hour(), tmp_path / name)
    assert (tmp_path / "first.html").read_bytes() == (tmp_path / "second.html").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"first.html", "second.html"}


def test_a_failure_leaves_the_old_report(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(report, "render_report", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(busy_hour(), path)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report.html", "old")]


def test_lines_name_the_most_frequent_reasons():
    reasons = ["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d", "e"]
    summary = make_result(make_requests(status=["rejected"] * 11, reason=reasons), make_steps(running=[1])).summary
    assert ("Requests rejected", "11 (4 a, 3 b, 2 c, 2 for other reasons)") in summary_lines(summary)


def test_lines_show_a_dash_where_there_is_no_data():
    summary = make_result(make_requests(arrival_s=[]), make_steps(running=[])).summary
    lines = dict(summary_lines(summary))
    assert lines["KV cache usage"] == lines["Time to first token (TTFT)"] == lines["Requests per second"] == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0.0, "0 s"), (2.5e-6, "2.5 µs"), (0.0456, "45.6 ms"), (0.9996, "1 s"), (1.234, "1.23 s"),
        (119.6, "120 s"), (312.0, "5 min 12 s"), (11520.0, "3 h 12 min"),
    ],
)  # fmt: skip
def test_seconds_read_well(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(None, "–"), (17, "17 B"), (131_072, "128 KiB"), (13_207_024_435, "12.3 GiB")]
)
def test_bytes_read_well(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(("value", "text"), [(12345.0, "12,345"), (123.4, "123"), (1.234, "1.23"), (0.0456, "0.0456")])
def test_numbers_read_well(value, text):
    assert format_number(value) == text


def test_shares_read_well():
    assert [format_share(share) for share in (None, 0.4321, 1.0)] == ["–", "43.2%", "100%"]
