"""One request, as the scheduler of its replica knows it."""

from kvcache.manager import RequestBlocks

__all__ = ["Request"]


class Request:
    """A request's lengths, its progress, and what happened to it when.

    While it decodes, the tokens computed before step `s` are `s + origin`: nothing is counted up per step.
    """

    __slots__ = (
        "arrival_s",
        "blocks",
        "cached_tokens",
        "chunk_step",
        "chunk_tokens",
        "computed",
        "due_step",
        "finish_s",
        "finish_step",
        "first_scheduled_s",
        "first_token_s",
        "is_decoding",
        "is_running",
        "known_tokens",
        "loaded_tokens",
        "missed_step",
        "num_preemptions",
        "order",
        "origin",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "request_id",
        "session",
    )

    def __init__(
        self,
        request_id: str,
        arrival_s: float,
        blocks: RequestBlocks,
        *,
        output_tokens: int,
        priority: int = 0,
        session: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.blocks = blocks
        self.prompt_tokens = blocks.prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.session = session
        # Progress.
        self.is_running = False
        self.is_decoding = False
        self.order = -1
        """Its place among the running requests: they are served in order of admission."""
        self.known_tokens = blocks.prompt_tokens
        """Prompt and settled output tokens, while it does not decode."""
        self.computed = 0
        """Tokens whose KV exists, while it does not decode."""
        self.chunk_step = self.missed_step = -2
        """The last step that computed tokens of its prompt (so many), and the last that it missed as a decode."""
        self.chunk_tokens = 0
        self.origin = 0
        self.due_step = -1
        """The next step at which its block tables change, or it ends, while it decodes."""
        self.finish_step = -1
        """The step that computes its last token, while it decodes."""
        # What happened.
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.finish_s: float | None = None
        self.cached_tokens = 0
        """Tokens of the prefix hit at its first admission."""
        self.loaded_tokens = 0
        """Tokens beyond it whose keys and values came from elsewhere."""
        self.num_preemptions = 0

    def __hash__(self) -> int:
        """One request equals itself alone. A compiled class that compares has no hash unless it says so."""
        return id(self)

    def __lt__(self, other: "Request") -> bool:
        return self.rank < other.rank

    @property
    def rank(self) -> tuple[int, float, str]:
        """Who goes first under priority scheduling: the smaller number, then the earlier arrival."""
        return self.priority, self.arrival_s, self.request_id

    @property
    def max_tokens(self) -> int:
        """Tokens of the finished request, prompt and output."""
        return self.prompt_tokens + self.output_tokens
