"""Read when the requests of a run were where: a JSONL of request stamps, or a result of vLLM's `bench serve`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.calibration_stamps import Stamps
from simulator.scenario import ScenarioError
from workloads import Trace, TraceRequest

__all__ = ["MeasuredRun", "read_bench_result", "read_request_stamps"]

STAMP_FIELDS = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
BENCH_FIELDS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
TOKENS_PER_SPAN = 32
"""Of times between tokens so many are taken together: what reaches a client comes in bunches."""


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A workload, and what a server made of it; times are seconds from the first arrival."""

    requests: tuple[TraceRequest, ...]
    stamps: Mapping[str, Stamps]
    """By request id, in order of arrival."""

    def trace(self, name: str) -> Trace:
        """The workload, to be replayed. Nothing is known of shared prefixes."""
        return Trace(name, None, lambda: iter(self.requests), len(self.requests))

    def first(self, num_requests: int | None) -> dict[str, Stamps]:
        """The stamps of the requests that came first."""
        return dict(list(self.stamps.items())[:num_requests])


def read_request_stamps(file: Path) -> MeasuredRun:
    """A line for each request: its lengths, and when it was queued, scheduled (optional), and got its tokens.

    Raises ScenarioError with one line that says what is wrong where.
    """
    found = []
    for number, line in enumerate(_text(file).splitlines(), start=1):
        if line.strip():
            found.append(_request(_record(line, f"{file}, line {number:,}"), f"{file}, line {number:,}"))
    return _run(file, found)


def _request(record: dict[str, Any], place: str) -> tuple[int, int, Stamps]:
    if missing := [name for name in STAMP_FIELDS if name not in record]:
        raise ScenarioError(f"{place}: {missing[0]} is missing (found: {', '.join(record) or 'nothing'})")
    prompt_tokens, output_tokens = (_count(record, name, place) for name in STAMP_FIELDS[:2])
    names = ["queued_ts", *(["scheduled_ts"] if record.get("scheduled_ts") is not None else []), *STAMP_FIELDS[3:]]
    times_s = [_time(record, name, place) for name in names]
    for before, after in zip(range(len(names)), range(1, len(names)), strict=False):
        if times_s[after] < times_s[before]:
            raise ScenarioError(f"{place}: {names[after]} is before {names[before]}: are they of one clock?")
    token_s = {1: times_s[-2]} | ({output_tokens: times_s[-1]} if output_tokens > 1 else {})
    return prompt_tokens, output_tokens, Stamps(times_s[0], times_s[1] if len(names) > 3 else None, token_s)


def read_bench_result(file: Path) -> MeasuredRun:
    """What `vllm bench serve --save-result --save-detailed` wrote; requests that failed are left out.

    Raises ScenarioError with one line that says what is wrong.
    """
    record = _record(_text(file), str(file))
    if missing := [name for name in BENCH_FIELDS if not isinstance(record.get(name), list)]:
        raise ScenarioError(f"{file}: has no list {missing[0]}: it takes `vllm bench serve --save-detailed`")
    columns = [record[name] for name in BENCH_FIELDS]
    if len(set(map(len, columns))) != 1:
        sizes = ", ".join(f"{name} {len(column):,}" for name, column in zip(BENCH_FIELDS, columns, strict=True))
        raise ScenarioError(f"{file}: its lists are not of one length: {sizes}")
    found = []
    for number, row in enumerate(zip(*columns, strict=True), start=1):
        values = dict(zip(BENCH_FIELDS, row, strict=True))
        if values["output_lens"] and values["ttfts"]:
            found.append(_answer(values, f"{file}, request {number:,}"))
    return _run(file, found)


def _answer(values: dict[str, Any], place: str) -> tuple[int, int, Stamps]:
    prompt_tokens, output_tokens = (_count(values, name, place) for name in BENCH_FIELDS[:2])
    start_s, ttft_s = _time(values, "start_times", place), _time(values, "ttfts", place)
    gaps = values["itls"]
    if not isinstance(gaps, list) or not all(isinstance(gap, int | float) and 0 <= gap for gap in gaps):
        raise ScenarioError(f"{place}: itls must be a list of seconds")
    times_s = list(accumulate(gaps, initial=start_s + ttft_s))
    token_s = {1: times_s[0]}
    if len(times_s) == output_tokens:  # else some chunks had several tokens, and only the last is known
        token_s |= {number: times_s[number - 1] for number in range(1, output_tokens, TOKENS_PER_SPAN)}
    if output_tokens > 1:
        token_s[output_tokens] = times_s[-1]
    return prompt_tokens, output_tokens, Stamps(start_s, None, token_s)


def _run(file: Path, found: list[tuple[int, int, Stamps]]) -> MeasuredRun:
    if not found:
        raise ScenarioError(f"{file} holds no request that was served")
    found.sort(key=lambda each: each[2].arrival_s)
    start_s = found[0][2].arrival_s
    requests, all_stamps = [], {}
    for number, (prompt_tokens, output_tokens, stamps) in enumerate(found):
        name = str(number)
        arrival_s = stamps.arrival_s - start_s
        scheduled_s = None if stamps.scheduled_s is None else stamps.scheduled_s - start_s
        token_s = {token: time_s - start_s for token, time_s in stamps.token_s.items()}
        all_stamps[name] = Stamps(arrival_s, scheduled_s, token_s)
        requests.append(TraceRequest(name, arrival_s, prompt_tokens, output_tokens))
    return MeasuredRun(tuple(requests), all_stamps)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{file} is not text") from None


def _record(text: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ScenarioError(f"{place} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ScenarioError(f"{place} is not a JSON object")
    return record


def _count(record: dict[str, Any], name: str, place: str) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScenarioError(f"{place}: {name} must be a whole number of tokens, at least 1, got {value!r}")
    return value


def _time(record: dict[str, Any], name: str, place: str) -> float:
    value = record[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise ScenarioError(f"{place}: {name} must be a number of seconds, got {value!r}")
    return float(value)
