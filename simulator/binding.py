"""What seems to bind a run: told from its summary alone, so it is an inference, not a record."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Binding", "binding_of", "most_common_binding"]

Binding = Literal["nothing", "kv_memory", "max_num_seqs", "token_budget", "step_speed"]

_FULL_USAGE = 0.95
_FULL_STEPS = 0.9
"""Of the token budget, on average over all steps."""
_STANDING_QUEUE = 1.0


def binding_of(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> Binding:
    """What binds one server: the first of these that holds, else nothing.

    - kv_memory, if a request was preempted, or the pool was full (95%) while a queue stood;
    - max_num_seqs, if so many requests ran while a queue stood;
    - token_budget, if a queue stood and steps had 90% of max_num_batched_tokens on average;
    - step_speed, if a queue stood otherwise.

    A queue stands if one request or more waits, on average over the makespan.
    """
    usage, running, waiting = summary["kv_cache_usage"], summary["running"], summary["waiting"]
    if summary["preemptions"]["total"]:
        return "kv_memory"
    if (waiting["mean"] or 0) < _STANDING_QUEUE:
        return "nothing"
    if (usage["max"] or 0) >= _FULL_USAGE:
        return "kv_memory"
    if running["max"] >= (scenario.get("max_num_seqs") or float("inf")):
        return "max_num_seqs"
    budget = scenario.get("max_num_batched_tokens")
    if budget and _tokens_per_step(summary) >= _FULL_STEPS * budget:
        return "token_budget"
    return "step_speed"


def most_common_binding(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> Binding:
    """Of a fleet what binds at most of the replicas that something binds; of one server what binds it."""
    replicas = summary.get("replicas")
    if not replicas:
        return binding_of(summary, scenario)
    found = Counter(binding_of(replica, replica["scenario"]) for replica in replicas)
    del found["nothing"]
    return found.most_common(1)[0][0] if found else "nothing"


def _tokens_per_step(summary: Mapping[str, Any]) -> float:
    """Computed on average: prompts without what was hit, and outputs, of finished requests."""
    rates, hit_rate = summary["throughput"], summary["prefix_cache_hit_rate"] or 0.0
    per_s = (rates["prompt_tokens_per_s"] or 0.0) * (1 - hit_rate) + (rates["output_tokens_per_s"] or 0.0)
    return float(per_s * summary["makespan_s"] / summary["steps"]) if summary["steps"] else 0.0
