"""Conformance scenarios that were written, not drawn: each is about one thing, and its name says which.

Prompts are documents (see `traffic`): `document(1, 320)` and `document(1, 200) + document(2, 50)` share 200 tokens.
"""

from collections.abc import Iterable
from typing import Any

from tests.conformance.scenarios.shapes import Scenario
from tests.conformance.scenarios.traffic import document, output_length, prompt_length

__all__ = ["BY_HAND"]

Request = dict[str, Any]
Layer = dict[str, Any]

FULL: Layer = {"kind": "full", "kv_heads": 1, "head_size": 64}
SLIDING: Layer = {"kind": "sliding", "kv_heads": 1, "head_size": 64, "window": 64}
CHUNKED: Layer = {"kind": "chunked", "kv_heads": 1, "head_size": 64, "chunk": 64}
STATE: Layer = {"kind": "mamba", "shapes": [[3, 50], [50, 16]], "dtypes": ["bfloat16", "float32"]}
WITH_STATES: dict[str, Any] = {"mamba_cache_mode": "align", "mamba_page_size_padded": 4096}
"""The page of the attention layers above at the usual block of 16 tokens."""


def _request(prompt: list[int], output: int | list[int], at: int = 0, **more: int) -> Request:
    return {"prompt": prompt, "output": output, "arrive_step": at, **more}


def _scenario(layers: list[Layer], requests: Iterable[Request], num_blocks: int, **settings: Any) -> Scenario:
    """The requests get ids in order; the longest one sets the length limit unless it is given."""
    numbered = [{"id": f"r{number}", **request} for number, request in enumerate(requests)]
    longest = max(prompt_length(request) + output_length(request) for request in numbered)
    usual = {"block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": longest}
    made = {"layers": layers, "requests": numbered, "num_blocks": num_blocks, **usual, **settings}
    return dict(sorted(made.items()))


def _repeat(count: int, *layers: Layer) -> list[Layer]:
    return [layer for _ in range(count) for layer in layers]


def _mixed_traffic(scale: int) -> list[Request]:
    """Three users of one long document, one of them coming back, then strangers; lengths go with `scale`."""
    first = document(1, 9 * scale) + document(11, scale + 3)
    requests = [
        _request(first, 12),
        _request(document(1, 9 * scale) + document(12, 2 * scale), 40, at=2),
        _request(document(1, 5 * scale + 1) + document(13, scale), 25, at=9),
        _request(document(2, 7 * scale - 1), document(31, 30), at=10),
        _request(first + [7] * 12 + document(14, scale), 20, at=30),
        _request(document(2, 7 * scale - 1) + document(31, 30) + document(15, 5), 20, at=60),
    ]
    strangers = [_request(document(40 + n, scale * (2 + n % 3) + n), 30 + n, at=60 + n // 3) for n in range(8)]
    return requests + strangers


# ---------------------------------------------------------------- shapes of real models


def _gemma3_27b() -> Scenario:
    head = {"kv_heads": 16, "head_size": 128}
    sliding = {"kind": "sliding", "window": 1024, **head}
    layers = [*_repeat(10, sliding | {"count": 5}, {"kind": "full", **head}), sliding | {"count": 2}]
    return _scenario(layers, _mixed_traffic(150), 1500, max_num_batched_tokens=512, max_model_len=2048)


def _gpt_oss_20b() -> Scenario:
    head = {"kv_heads": 8, "head_size": 64}
    layers = _repeat(12, {"kind": "sliding", "window": 128, **head}, {"kind": "full", **head})
    return _scenario(layers, _mixed_traffic(48), 150, max_model_len=1024)


def _llama_4() -> Scenario:
    """Scout's 36 chunked and 12 full layers, with a chunk that short prompts cross."""
    head = {"kv_heads": 8, "head_size": 128}
    layers = _repeat(12, {"kind": "chunked", "chunk": 256, "count": 3, **head}, {"kind": "full", **head})
    return _scenario(layers, _mixed_traffic(60), 180, max_model_len=1024)


def _jamba_layers() -> list[Layer]:
    state = {"kind": "mamba", "shapes": [[3, 8192], [8192, 16]], "dtypes": ["bfloat16", "bfloat16"]}
    full = {"kind": "full", "kv_heads": 8, "head_size": 128}
    return _repeat(4, state | {"count": 4}, full, state | {"count": 3})


def _jamba(mode: str) -> Scenario:
    """Jamba mini: the attention block grows to 80 tokens so that its page holds a state."""
    limit = 1024
    states = {"mamba_cache_mode": mode, "mamba_page_size_padded": 80 * 4096}
    if mode == "none":
        states |= {"mamba_block_size": limit, "prefix_caching": False}
    return _scenario(
        _jamba_layers(),
        _mixed_traffic(56),
        90 if mode == "align" else 32,
        block_size=80,
        max_num_batched_tokens=256,
        max_model_len=limit,
        **states,
    )


def _qwen3_next() -> Scenario:
    """Three gated delta-net layers to one full, on one of four ranks: blocks of 272 tokens."""
    state = {"kind": "mamba", "shapes": [[3, 2048], [8, 128, 128]], "dtypes": ["bfloat16", "bfloat16"], "count": 3}
    full = {"kind": "full", "kv_heads": 1, "head_size": 256}
    states = {"mamba_cache_mode": "align", "mamba_page_size_padded": 272 * 1024}
    return _scenario(
        _repeat(12, state, full),
        _mixed_traffic(100),
        30,
        block_size=272,
        max_num_batched_tokens=600,
        max_model_len=2048,
        **states,
    )


def _deepseek() -> Scenario:
    layers = [{"kind": "mla", "count": 61, "head_size": 576}]
    return _scenario(layers, _mixed_traffic(80), 28, block_size=64, max_num_batched_tokens=256, max_model_len=1500)


def _document_example() -> Scenario:
    """The design document's 20 sliding and 10 full layers, window 32, and a request of 112 tokens."""
    layers = _repeat(10, SLIDING | {"count": 2, "window": 32}, FULL)
    requests = [_request(document(1, 112), 4), _request(document(1, 112) + [7] * 4 + document(2, 20), 40, at=6)]
    return _scenario(layers, requests, 60)


# ---------------------------------------------------------------- prefix hits


def _diverging(layers: list[Layer], num_blocks: int, ends: Iterable[int], length: int, **settings: Any) -> Scenario:
    """A prompt, the same again, a longer one, then one by one prompts that leave it after so many tokens."""
    prompts = [document(1, length), document(1, length), document(1, length) + document(2, 80)]
    prompts += [document(1, end) + document(3 + n, 60) for n, end in enumerate(ends)]
    requests = [_request(prompt, 2, at=12 * n) for n, prompt in enumerate(prompts)]
    return _scenario(layers, requests, num_blocks, **settings)


def _retention(interval: int | None) -> Scenario:
    ends = (300, 260, 200, 130, 100, 300)
    return _diverging([SLIDING, FULL], 600, ends, 320, retention_interval=interval)


def _same_prompts() -> Scenario:
    """Ten times one prompt of whole blocks: five at once, which all compute it, then five which find it."""
    requests = [_request(document(1, 96), 20 + n, at=0 if n < 5 else 14) for n in range(10)]
    return _scenario([SLIDING, FULL], requests, 60)


def _around_a_block() -> Scenario:
    """Prompts of one to three blocks and a token less or more, each sent twice."""
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49]
    once = [_request(document(1 + n, length), 3, at=2 * n) for n, length in enumerate(lengths)]
    return _scenario([FULL], once + [request | {"arrive_step": 30 + n} for n, request in enumerate(once)], 120)


def _conversation(layers: list[Layer], num_blocks: int, **settings: Any) -> Scenario:
    """Two users take turns; each prompt repeats all that was said, the answers too."""
    said: dict[int, list[int]] = {0: document(1, 40), 1: document(1, 40)}
    requests = []
    for turn in range(10):
        user = turn % 2
        prompt = said[user] + document(20 + turn, 11 + turn)
        answer = document(50 + turn, 18 + turn) if user else 21
        requests.append(_request(prompt, answer, at=20 * turn))
        said[user] = prompt + (answer if isinstance(answer, list) else [7] * answer)
    return _scenario(layers, requests, num_blocks, **settings)


def _junction() -> Scenario:
    """The second to share a system prompt finds no state there, and leaves one for the third."""
    requests = [_request(document(1, 160) + document(10 + n, 50), 6, at=15 * n) for n in range(5)]
    return _scenario([STATE, STATE, FULL], requests, 60, **WITH_STATES)


def _state_in_the_same_step() -> Scenario:
    """Requests that could use a state which is only now being computed wait for it."""
    requests = [_request(document(1, 112), 8, at=n // 3) for n in range(7)]
    return _scenario([STATE, FULL], requests, 60, **WITH_STATES)


def _evicted_oldest_first() -> Scenario:
    """Documents take turns in a pool that holds half of them; the older one is gone when it comes back."""
    order = (1, 2, 3, 4, 1, 4, 5, 1, 3, 6, 1, 2)
    requests = [_request(document(d, 100) + document(20 + n, 9), 5, at=9 * n) for n, d in enumerate(order)]
    return _scenario([FULL], requests, 24)


# ---------------------------------------------------------------- scheduling


def _growing(count: int, prompt: int, output: int, **more: int) -> list[Request]:
    """Requests that start small and outgrow the pool together."""
    return [_request(document(1 + n, prompt + n), output + 3 * n, at=n // 2, **more) for n in range(count)]


def _long_prompts() -> Scenario:
    requests = [_request(document(1, 300), 10), _request(document(2, 5), 30), _request(document(3, 200), 10, at=1)]
    return _scenario([SLIDING, FULL], requests, 120, max_num_batched_tokens=48)


def _reservation(reserve: bool) -> Scenario:
    requests = [_request(document(1 + n, 150 + 16 * n), 12, at=n) for n in range(8)]
    return _scenario([FULL], requests, 26, max_num_batched_tokens=64, reserve_full_prompt=reserve)


def _priorities() -> Scenario:
    requests = _growing(8, 40, 40)
    for number, request in enumerate(requests):
        request["priority"] = (5, 1, 3, 0, 3, 2, 0, 5)[number]
    return _scenario([SLIDING, FULL], requests, 22, policy="priority")


def _head_of_line() -> Scenario:
    """A request that does not fit holds back a small one behind it."""
    requests = [_request(document(1, 400), 30), _request(document(2, 300), 4, at=1), _request(document(3, 20), 4, at=2)]
    return _scenario([FULL], requests, 41, max_num_batched_tokens=512)


def _threshold() -> Scenario:
    """A lone prompt is never cut at the threshold; several are."""
    requests = [_request(document(1, 250), 5)]
    requests += [_request(document(2 + n, 180 + n), 25, at=10) for n in range(3)]
    return _scenario([FULL], requests, 40, max_num_batched_tokens=256, long_prefill_token_threshold=40)


def _length_limit() -> Scenario:
    """Requests that would generate more than fits the length limit end there."""
    requests = [_request(document(1 + n, 70 + n), 60, at=n) for n in range(6)]
    return _scenario([SLIDING, FULL], requests, 32, max_model_len=100)


def _block_beyond_budget() -> Scenario:
    """A state's block is wider than the budget: the prompt advances inside it."""
    requests = [_request(document(1, 300) + document(2 + n, 20), 15, at=12 * n) for n in range(4)]
    states = {"mamba_cache_mode": "align", "mamba_page_size_padded": 80 * 256}
    return _scenario([STATE, FULL], requests, 22, block_size=80, max_num_batched_tokens=48, **states)


def _watermark() -> Scenario:
    return _scenario([FULL], _growing(9, 60, 30), 30, watermark=0.2)


def _idle() -> Scenario:
    requests = [_request(document(1, 64) + document(10 + n, 20), 6, at=40 * n) for n in range(4)]
    return _scenario([SLIDING, FULL], requests, 40)


# ---------------------------------------------------------------- no server starts with these


def _refused(layers: list[Layer], num_blocks: int = 500, **settings: Any) -> Scenario:
    return _scenario(layers, [_request(document(1, 200), 56)], num_blocks, **settings)


_SYNCHRONOUS: dict[str, Scenario] = {
    "gemma3-27b-shape": _gemma3_27b(),
    "gpt-oss-20b-shape": _gpt_oss_20b(),
    "llama-4-shape": _llama_4(),
    "jamba-align": _jamba("align"),
    "jamba-without-prefix-cache": _jamba("none"),
    "qwen3-next-shape": _qwen3_next(),
    "deepseek-mla-shape": _deepseek(),
    "design-document-20-sliding-10-full": _document_example(),
    "retention-0-diverging": _retention(0),
    "retention-128-diverging": _retention(128),
    "retention-dense-diverging": _retention(None),
    "chunks-diverging": _diverging([CHUNKED, FULL], 600, (260, 257, 256, 255, 130, 65, 20), 310),
    "unequal-blocks-diverging": _diverging(
        [FULL, SLIDING | {"head_size": 128}], 600, (300, 280, 170, 31), 336, retention_interval=None
    ),
    "window-4-block-1-diverging": _diverging(
        [SLIDING | {"window": 4}], 300, (14, 6, 5, 3), 15, block_size=1, retention_interval=None
    ),
    "identical-prompts": _same_prompts(),
    "prompts-around-a-block": _around_a_block(),
    "conversation-full": _conversation([FULL], 30),
    "conversation-sliding": _conversation([SLIDING, FULL], 80),
    "conversation-states": _conversation([STATE, FULL], 60, **WITH_STATES),
    "junction-of-states": _junction(),
    "state-in-the-same-step": _state_in_the_same_step(),
    "evicted-oldest-first": _evicted_oldest_first(),
    "prompt-longer-than-budget": _long_prompts(),
    "full-prompt-reservation-on": _reservation(True),
    "full-prompt-reservation-off": _reservation(False),
    "priority-decides-who-yields": _priorities(),
    "head-of-line": _head_of_line(),
    "long-prefill-threshold": _threshold(),
    "length-limit": _length_limit(),
    "state-block-beyond-budget": _block_beyond_budget(),
    "watermark-holds-back": _watermark(),
    "idle-between-arrivals": _idle(),
    "outgrowing-the-pool-full": _scenario([FULL], _growing(8, 40, 40), 18),
    "outgrowing-the-pool-chunked": _scenario([CHUNKED, FULL], _growing(8, 40, 40), 28),
    "outgrowing-the-pool-states": _scenario([STATE, FULL], _growing(8, 40, 40), 24, **WITH_STATES),
    "outgrowing-the-pool-no-caching": _scenario([SLIDING, FULL], _growing(8, 40, 40), 28, prefix_caching=False),
    "hybrid-off-gemma3": _scenario([SLIDING | {"count": 5}, FULL], _mixed_traffic(16), 22, hybrid=False),
}

_REFUSED: dict[str, Scenario] = {
    "refused-pool-too-small": _refused([SLIDING, FULL], 16 + 13),
    "refused-retention-off-grid": _refused([SLIDING, FULL], retention_interval=40),
    "refused-retention-without-use": _refused([FULL], retention_interval=64),
    "refused-two-windows-hybrid-off": _refused([SLIDING, SLIDING | {"window": 32}, FULL], hybrid=False),
    "refused-states-hybrid-off": _refused([STATE, FULL], hybrid=False, **WITH_STATES),
    "refused-mla-page-not-divisible": _refused(
        [STATE, {"kind": "mla", "head_size": 192}], mamba_cache_mode="align", mamba_page_size_padded=10000
    ),
}

_ALSO_ASYNCHRONOUS = (
    "gemma3-27b-shape",
    "gpt-oss-20b-shape",
    "jamba-align",
    "identical-prompts",
    "conversation-sliding",
    "junction-of-states",
    "prompt-longer-than-budget",
    "priority-decides-who-yields",
    "length-limit",
    "outgrowing-the-pool-full",
    "outgrowing-the-pool-states",
)

BY_HAND: dict[str, Scenario] = {
    **_SYNCHRONOUS,
    **_REFUSED,
    **{f"async-{name}": {"async_scheduling": True, **_SYNCHRONOUS[name]} for name in _ALSO_ASYNCHRONOUS},
}
