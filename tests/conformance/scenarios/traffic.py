"""Traffic for the conformance scenarios: prompts that share beginnings, outputs, arrivals.

Prompts are made of documents. Document `d` is a cycle of seven tokens that no other document has, so
two prompts share exactly the documents that they begin with, and files stay small. A generated token
of a request whose output is only counted is 7, which no document contains.
"""

from random import Random
from typing import Any

__all__ = ["document", "make_requests", "output_length", "prompt_length"]


def document(number: int, length: int) -> list[int]:
    """The first `length` tokens of a document; documents of different numbers share no token."""
    return [10 * number + j % 7 for j in range(length)]


def _length(rng: Random, block: int, longest: int) -> int:
    """A prompt length: often at a block boundary or one token off it, sometimes below a block."""
    form = rng.random()
    if form < 0.15:
        return rng.randint(1, block)
    if form < 0.6:
        whole = rng.randint(1, max(1, longest // block)) * block
        return max(1, min(longest, whole + rng.choice((-1, 0, 0, 1))))
    return rng.randint(1, longest)


class _Traffic:
    """Requests one after another; later ones may repeat, share or continue earlier ones."""

    def __init__(self, rng: Random, block: int, longest_prompt: int) -> None:
        self.rng, self.block, self.longest_prompt = rng, block, longest_prompt
        self.requests: list[dict[str, Any]] = []
        self.shared = [document(d, _length(rng, block, longest_prompt * 2 // 3)) for d in range(1, rng.randint(2, 5))]
        self.next_document = 10

    def fresh(self, length: int) -> list[int]:
        self.next_document += 1
        return document(self.next_document, length)

    def prompt(self) -> list[int]:
        rng = self.rng
        how = rng.choices(("fresh", "shared", "nested", "cut", "again", "continued"), (2, 4, 2, 2, 2, 3))[0]
        earlier = rng.choice(self.requests) if self.requests else None
        if how == "again" and earlier:
            return list(earlier["prompt"])
        if how == "continued" and earlier:
            return self._continued(earlier)
        first, second = rng.choice(self.shared), rng.choice(self.shared)
        tail = self.fresh(rng.randint(0, 2 * self.block) or 1)
        if how == "shared":
            return first + tail
        if how == "nested":
            return first + second + tail
        if how == "cut":
            return first[: _length(rng, self.block, len(first))] + tail
        return self.fresh(_length(rng, self.block, self.longest_prompt))

    def _continued(self, earlier: dict[str, Any]) -> list[int]:
        """The next turn of a conversation: an earlier prompt, its output and something new."""
        output = earlier["output"]
        said: list[int] = [7] * output if isinstance(output, int) else output
        if self.rng.random() < 0.2:
            said = said[:-1] if self.rng.random() < 0.5 else [*said[:-1], 9]
        return [*earlier["prompt"], *said, *self.fresh(self.rng.randint(1, 2 * self.block))]

    def output(self, mean: int) -> int | list[int]:
        count = max(1, min(3 * mean, round(self.rng.expovariate(1 / mean))))
        if self.rng.random() < 0.3:
            return self.fresh(count)
        return count

    def add(self, prompt: list[int], output: int | list[int], **more: int) -> None:
        prompt = prompt[: 2 * self.longest_prompt]
        self.requests.append({"id": f"r{len(self.requests)}", "prompt": prompt, "output": output, **more})


def _arrivals(rng: Random, count: int) -> list[int]:
    """The step at which each request arrives: all at once, one by one, or in bursts with idle gaps between."""
    form = rng.choice(("at once", "one by one", "bursts", "bursts"))
    if form == "at once":
        return [0] * count
    mean_gap = rng.choice((1, 2, 4, 8)) if form == "one by one" else 0
    steps, step = [], 0
    for _ in range(count):
        steps.append(step)
        if form == "one by one":
            step += round(rng.expovariate(1 / mean_gap))
        elif rng.random() < 0.2:
            step += rng.choice((3, 10, 25, 60))
    return steps


def _hash_requests(rng: Random, block: int, count: int, mean_output: int) -> list[dict[str, Any]]:
    """Requests as traces give them: a length and the ids of its prefix blocks."""
    size = rng.choice((block, 2 * block, 3 * block, block + 3, 64))
    requests: list[dict[str, Any]] = []
    for number in range(count):
        depth = rng.randint(0, 6)
        family = rng.randint(0, 2)
        ids = [1000 * family + d if rng.random() < 0.9 else 9000 + number for d in range(depth)]
        partial = rng.choice((0, 1, size - 1, rng.randrange(size)))
        if partial and depth and rng.random() < 0.5:
            ids.append(20000 + number)  # traces count the partial last block among the ids
        length = max(1, depth * size + partial)
        output = max(1, min(3 * mean_output, round(rng.expovariate(1 / mean_output))))
        requests.append(
            {"id": f"r{number}", "input_length": length, "hash_ids": ids, "hash_block": size, "output": output}
        )
    return requests


def prompt_length(request: dict[str, Any]) -> int:
    """The prompt's tokens, whichever way it is given."""
    return int(request["input_length"]) if "input_length" in request else len(request["prompt"])


def output_length(request: dict[str, Any]) -> int:
    """The tokens that the request generates."""
    output = request["output"]
    return output if isinstance(output, int) else len(output)


def make_requests(rng: Random, block: int, by_hash_ids: bool) -> list[dict[str, Any]]:
    count = rng.randint(6, 28)
    mean_output = max(4, rng.choice((200, 350, 500)) // count)
    if by_hash_ids:
        requests = _hash_requests(rng, block, count, mean_output)
    else:
        traffic = _Traffic(rng, block, rng.choice((6, 10, 16)) * block)
        for _ in range(count):
            traffic.add(traffic.prompt(), traffic.output(mean_output))
        requests = traffic.requests
    for request, step in zip(requests, _arrivals(rng, count), strict=True):
        if step:
            request["arrive_step"] = step
    return requests
