"""`kvplan explain`: its words, its picture, its JSON, and how it says no."""

import json
from pathlib import Path

import pytest

from simulator.explain import explain
from simulator.plots_story import draw_story
from simulator.scenario import Scenario, ScenarioError
from simulator.story_words import sections
from tests.kvcache.pools import full, mamba, sliding
from tests.simulator.conftest import CHUNKS_LEAVE_NO_BUDGET, Arrival
from tests.simulator.stories import tell

PREFIX = (1, 2, 3, 4, 5, 6, 7, 8)
EVICTED = {
    "requests": [Arrival(0.0, 17, 1, PREFIX[:4]), Arrival(3.5, 24, 1), Arrival(9.0, 17, 1, PREFIX[:4])],
    "name": "c",
    "num_blocks": 9,
}
NOT_KEPT = {
    "requests": [Arrival(0.0, 33, 1, PREFIX), Arrival(5.0, 33, 1, (1, 2, 3, 4, 95, 96))],
    "name": "b",
    "layers": [full(4), sliding(8, 4)],
}
PREEMPTED = {"requests": [Arrival(0.0, 8, 9), Arrival(0.5, 8, 5)], "name": "b", "num_blocks": 6}
BEHIND = {
    "requests": [Arrival(0.0, 400, 10), Arrival(0.5, 300, 1), Arrival(0.5, 20, 1)],
    "name": "c",
    "num_blocks": 41,
    "block_size": 16,
}
STATES = {
    "requests": [Arrival(0.0, 24, 4, (1, 2)), Arrival(0.0, 24, 1, (1, 2))],
    "name": "b",
    "layers": [full(8), mamba(8)],
    "block_size": 8,
}
NO_STATE = {
    "requests": [Arrival(0.0, 40, 1, (1, 2, 3, 4)), Arrival(9.0, 40, 1, (1, 2, 83, 84))],
    "name": "b",
    "layers": [full(8), mamba(8)],
    "block_size": 8,
}
REJECTED = {"requests": [Arrival(0.0, 8, 2), Arrival(0.5, 40, 1)], "name": "b", "num_blocks": 6}
LATE = {"name": "c", **CHUNKS_LEAVE_NO_BUDGET}


def words(server) -> str:
    """All sentences, one a line."""
    return "\n".join(
        f"{section.heading}\n" + "\n".join(map(" ".join, section.lines)) for section in sections(tell(**server))
    )


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (
            EVICTED,
            (
                "Full attention (group 1): 8 tokens. The next block, tokens 8 to 11, is missing:"
                " request a had cached it at 0.000 s, and it was evicted at 3.500 s, when request b took blocks."
            ),
        ),
        (
            NOT_KEPT,
            (
                "Sliding window of 8 (group 2): 0 tokens. To resume after 16 tokens it lacks the block of"
                " tokens 8 to 11:"
                " request a had computed it at 0.000 s, but sparse retention did not keep it;"
                " --prefix-cache-retention-interval 16 does."
            ),
        ),
        (
            PREEMPTED,
            (
                "2.000 s It needed 1 block, 0 were free, and it was itself the next to yield. Its blocks go,"
                " with 8 tokens"
                " computed; what stays cached can be hit."
            ),
        ),
        (
            BEHIND,
            (
                "for 9 s Too few free blocks for request b, the first of the queue: it needed 19 for all its"
                " 300 tokens,"
                " and 14 were free."
            ),
        ),
        (
            STATES,
            (
                "for 1 s Its prefix hit ended with a Mamba state that this very step wrote: it can be read in the"
                " next one."
            ),
        ),
        (
            NO_STATE,
            (
                "request a had passed it at 0.000 s in one step from 0 tokens on, and a state is written at"
                " the end of a"
                " step only."
            ),
        ),
        (NOT_KEPT, "The hit is cut by full attention to 16 tokens, then sliding window of 8 to 0 tokens."),
        (REJECTED, "2.000 s It is rejected: its tokens need more blocks than the pool has."),
        (LATE, "It missed 2 steps (2 s): the token budget did not reach it, or somebody before it was preempted."),
        (LATE, "Finished 11.5 s after its arrival, first token after 1.5 s, never preempted."),
    ],
)
def test_causes_are_said_in_words(server, sentence):
    assert sentence in words(server)


@pytest.mark.parametrize("server", [EVICTED, NOT_KEPT, PREEMPTED, STATES, REJECTED, LATE])
def test_every_story_can_be_drawn(server, tmp_path):
    draw_story(tell(**server), tmp_path / "story.png")
    assert (tmp_path / "story.png").read_bytes().startswith(b"\x89PNG")


def test_a_story_is_plain_json():
    story = tell(**PREEMPTED)
    plain = json.loads(json.dumps(story.to_json(), allow_nan=False))
    assert plain["attempts"][0]["preemption"]["by"] == "b"
    assert plain["attempts"][1]["admission"]["cuts"][-1]["cause"]["when"] == {"step": 5, "time_s": 5.0}


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def kvplan(kvplan, tmp_path):
    """Run the command in a folder of its own, in which there is a run."""
    rows = [{"timestamp": 1000 * row, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]} for row in range(4)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kvplan("simulate", "gemma-3-1b", "--gpu", "l4", "--trace", "trace.jsonl", "--no-report", "--out", "run")
    return kvplan


def test_a_request_is_explained_and_drawn(kvplan):
    done = kvplan("explain", "run", "3")
    assert (done.code, done.err) == (0, "")
    assert all(word in done.out for word in ("Request 3", "Admission: 512 tokens of 700", "Picture: run/explain-3.png"))
    assert Path("run/explain-3.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_all_that_is_printed(kvplan):
    done = kvplan("explain", "run", "3", "--json", "--out", "pictures/three.png")
    assert json.loads(done.out)["attempts"][0]["admission"]["hit_tokens"] == 512
    assert (done.err, Path("pictures/three.png").is_file(), Path("run/explain-3.png").exists()) == ("", True, False)


def test_a_trace_that_was_moved(kvplan):
    Path("trace.jsonl").rename("moved.jsonl")
    lost = kvplan("explain", "run", "3")
    assert (lost.code, lost.err) == (
        2,
        "kvplan: --trace: the run's trace trace.jsonl is not there; say where it is with --trace FILE\n",
    )
    assert kvplan("explain", "run", "3", "--trace", "moved.jsonl").code == 0


def test_a_model_that_was_read_from_a_file(kvplan):
    config = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 256, "intermediate_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    }  # fmt: skip
    Path("mine.json").write_text(json.dumps(config))
    kvplan("simulate", "mine.json", "--gpu", "l4", "--trace", "trace.jsonl", "--no-report", "--out", "mine")
    assert kvplan("explain", "mine", "2").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "3"), "nowhere is not a run folder: summary.json cannot be read: No such file or directory"),
        (("run", "33"), "run has no request '33'; the nearest: '3'"),
        (("run", "zzz"), "run has no request 'zzz'; it has 4, such as '1', '2', '3'"),
        (("run",), "Missing argument 'REQUEST'."),
    ],
)
def test_a_mistake_is_one_line(kvplan, arguments, said):
    done = kvplan("explain", *arguments)
    assert (done.code, done.out, done.err) == (2, "", f"kvplan: {said}\n")


@pytest.mark.parametrize("flags", [{"grouping": "two-level"}, {"semantics": "document"}])
def test_another_pool_is_refused(flags):
    """Its evictions go by other rules than the watched pool's."""
    scenario = Scenario(model="gemma-3-1b", step_time_s=0.02, kv_cache_memory_bytes="2GiB", **flags)
    with pytest.raises(ScenarioError, match="explain: knows vLLM's pool only"):
        explain(scenario, "1")
