"""Coding-agent sessions: when a call is made, what a sub-agent waits for, and whose prefix ids are whose."""

import json

import pytest

from workloads import TraceError, holds_sessions, read_sessions, read_trace
from workloads.sessions import walk_calls


def call(t=0.0, tokens=128, out=5, rle=(1, 2), **fields):
    return {"t": t, "type": "n", "in": tokens, "out": out, "hash_rle": list(rle), **fields}


def subagent(t, requests, duration_ms=None, status="completed"):
    return {"t": t, "type": "subagent", "duration_ms": duration_ms, "status": status, "requests": requests}


def session(*requests, name="s", **fields):
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **fields}


@pytest.fixture
def agents_file(tmp_path):
    """Write sessions; one may be a raw line."""

    def write(*rows):
        path = tmp_path / "agents.jsonl"
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return path

    return write


def the_error(path, read=read_sessions):
    with pytest.raises(TraceError) as caught:
        list(read(path))
    return str(caught.value).replace(str(path), "FILE")


def think_times_s(path):
    (only,) = read_sessions(path)
    return {each.request_id: each.think_time_s for each in walk_calls(only.calls)}


def test_a_session_is_its_calls_in_order(agents_file):
    path = agents_file(session(call(), call(9.0, 200, 7, (1, 2, 3, 1), think_time=4.0, api_time=1.0)))
    trace = read_sessions(path)
    (only,) = trace
    first, second = only.calls
    assert (trace.name, trace.prefix_block_tokens, only.name) == ("agents", 64, "s")
    assert (first.request_id, first.prompt_tokens, first.output_tokens, first.think_time_s) == ("s/1", 128, 5, 0.0)
    assert (second.request_id, second.think_time_s, second.prefix_ranges) == ("s/2", 4.0, (range(1, 3), range(3, 4)))


def test_ids_of_different_sessions_never_meet(agents_file):
    """Sub-agents share their session's."""
    alone = session(call(), subagent(5.0, [call(rle=(7, 2))]), name="a")
    path = agents_file(alone, session(call(rle=(0, 2)), name="b"))
    ids = [
        {id_ for each in walk_calls(one.calls) for ids in each.prefix_ranges for id_ in ids}
        for one in read_sessions(path)
    ]
    assert ids == [{1, 2, 7, 8}, {9, 10}]


def test_a_call_that_generated_nothing_counts_as_one_token(agents_file):
    ((only,),) = (each.calls for each in read_sessions(agents_file(session(call(out=0)))))
    assert only.output_tokens == 1


# Think times


def test_a_think_time_counts_from_the_end_of_the_call_before(agents_file):
    path = agents_file(session(call(0.0, api_time=2.5), call(10.0, think_time=7.2)))
    assert think_times_s(path) == {"s/1": 0.0, "s/2": 7.2}


def test_a_think_time_is_no_longer_than_since_the_call_before_began(agents_file):
    """Where it is not known how long a call took, the next think time counts from the last one of which it is."""
    path = agents_file(session(call(0.0, api_time=2.0), call(10.0, think_time=8.0), call(13.0, think_time=11.0)))
    assert think_times_s(path) == {"s/1": 0.0, "s/2": 8.0, "s/3": 3.0}


def test_a_think_time_that_is_missing_is_the_time_since_the_call_before_began(agents_file):
    assert think_times_s(agents_file(session(call(0.0), call(10.0)))) == {"s/1": 0.0, "s/2": 10.0}


# Sub-agents


def test_a_call_waits_for_the_subagents_before_it(agents_file):
    """They ended at 60 s and 90 s, so of the 98 s since the call before 10 are left."""
    path = agents_file(
        session(
            call(0.0, api_time=2.0),
            subagent(60.0, [call(), call(20.0, think_time=3.0)], duration_ms=57_500),
            subagent(90.0, [call()], duration_ms=87_000),
            call(100.0, think_time=98.0),
        )
    )
    (only,) = read_sessions(path)
    assert [agent.is_awaited for agent in only.calls[0].subagents] == [True, True]
    assert think_times_s(path) == {"s/1": 0.0, "s/1.1/1": 0.5, "s/1.1/2": 3.0, "s/1.2/1": 1.0, "s/2": 10.0}


def test_a_subagent_launched_asynchronously_runs_beside_what_follows(agents_file):
    """It starts when the file says, and the next call thinks as long as it says."""
    path = agents_file(
        session(
            call(0.0, api_time=2.0),
            subagent(2.25, [call()], status="async_launched"),
            call(10.0, think_time=8.0),
        )
    )
    (only,) = read_sessions(path)
    assert [agent.is_awaited for agent in only.calls[0].subagents] == [False]
    assert think_times_s(path) == {"s/1": 0.0, "s/1.1/1": 0.25, "s/2": 8.0}


def test_subagents_may_have_subagents(agents_file):
    inner = subagent(3.0, [call()], duration_ms=1000)
    path = agents_file(session(call(), subagent(30.0, [call(0.0, api_time=1.0), inner, call(5.0, think_time=4.0)])))
    assert think_times_s(path) == {"s/1": 0.0, "s/1.1/1": 0.0, "s/1.1/1.1/1": 1.0, "s/1.1/2": 2.0}


# What is refused

GOOD = session(call())


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        ([call(tokens=-3)], '"requests[0].in": must be a non-negative whole number, got -3'),
        ([call(tokens=0, rle=())], '"requests[0].in": must be at least 1 token, got 0'),
        ([call(), call(out="7")], "\"requests[1].out\": must be a non-negative whole number, got '7'"),
        ([call(), call(t=-1)], '"requests[1].t": must be a non-negative number, got -1'),
        ([call(t=3), call(t=2.5)], '"requests[1].t": must not be earlier than the call before, is by 0.5 s'),
        ([call(think_time="4")], "\"requests[0].think_time\": must be a non-negative number, got '4'"),
        ([call(api_time=float("inf"))], '"requests[0].api_time": must be a non-negative number, got inf'),
        (
            [call(rle=(1, 3))],
            '"requests[0].hash_rle": must count one per whole block of 64 tokens, 2 for 128 in, got 3',
        ),
        (
            [call(rle=(1, 2, 3))],
            '"requests[0].hash_rle": must be whole numbers, [first, count, first, count, ...], got [1, 2, 3]',
        ),
        ([call(rle=(-1, 2))], '"requests[0].hash_rle": must hold numbers from 0 to 2**40, got -1 and 2'),
        (
            [call(rle=(1 << 41, 2))],
            '"requests[0].hash_rle": must hold numbers from 0 to 2**40, got 2 and 2199023255552',
        ),
        ([call(type="x")], '"requests[0].type": must be "n", "s" or "subagent", got \'x\''),
        ([subagent(1.0, [call()])], '"requests[0].type": must be a call: nobody has started this sub-agent'),
        ([call(), subagent(1.0, [])], '"requests[1].requests": must be a list of at least one request, got []'),
        (
            [call(), subagent(1.0, [call(tokens=-3)])],
            '"requests[1].requests[0].in": must be a non-negative whole number, got -3',
        ),
        ([call(), subagent(1.0, [call()], status=3)], '"requests[1].status": must be a text, got 3'),
        (
            [call(), subagent(1.0, [call()], duration_ms=-1)],
            '"requests[1].duration_ms": must be a non-negative number, got -1',
        ),
        ([], '"requests": must be a list of at least one request, got []'),
        ([7], '"requests[0]": must be a JSON object, got 7'),
    ],
)
def test_a_wrong_value_is_named_with_its_row_request_and_field(agents_file, requests, problem):
    assert the_error(agents_file(GOOD, session(*requests))) == f"FILE, row 2, field {problem}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"block_size": 16}, '"block_size": must be 64, got 16'),
        ({"hash_id_scope": "global"}, "\"hash_id_scope\": must be 'local', got 'global'"),
        ({"name": 5}, '"id": must be a text, got 5'),
    ],
)
def test_a_session_says_what_its_ids_mean(agents_file, fields, problem):
    assert the_error(agents_file(GOOD, session(call(), **fields))) == f"FILE, row 2, field {problem}"


def test_a_missing_field_is_named(agents_file):
    spoilt = call()
    del spoilt["out"]
    assert the_error(agents_file(GOOD, session(spoilt))) == (
        'FILE, row 2, field "requests[0].out": is missing (found: t, type, in, hash_rle)'
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not valid JSON (Expecting property name enclosed in double quotes)"),
        ("7", "must be a JSON object, got 7"),
    ],
)
def test_a_spoilt_line_is_a_spoilt_row(agents_file, line, problem):
    assert the_error(agents_file(GOOD, line)) == f"FILE, row 2: {problem}"


def test_rows_are_read_as_they_are_asked_for(agents_file):
    sessions = iter(read_sessions(agents_file(GOOD, "spoilt")))
    assert next(sessions).name == "s"


# Sessions are no trace, and a trace no sessions


def test_sessions_are_not_read_as_a_trace(agents_file):
    path = agents_file(GOOD)
    assert holds_sessions(path)
    assert the_error(path, read_trace) == (
        "FILE: holds sessions, whose requests wait for one another: only `kvplan simulate` replays them, with"
        " --concurrent-sessions or --session-rate"
    )


def test_a_trace_is_not_read_as_sessions(mooncake_file):
    path = mooncake_file((0, 9, 1, [1]))
    assert not holds_sessions(path)
    assert the_error(path) == "FILE: holds single requests with times of arrival, not sessions"


def test_another_file_is_neither(tmp_path):
    (path := tmp_path / "a").write_text("when,how many\n1,2\n")
    assert the_error(path).startswith("FILE: no known format has the fields found (when, how many); known formats: ")
