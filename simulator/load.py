"""How many requests are somewhere, and how that adds up over time."""

__all__ = ["Load"]


class Load:
    """A count of requests that comes and goes, and its integral."""

    __slots__ = ("changed_s", "most", "num", "request_s")

    def __init__(self) -> None:
        self.num = 0
        self.most = 0
        self.request_s = 0.0
        """Seconds that all requests together were here, until the last change."""
        self.changed_s = 0.0
        """When it changed last."""

    def change(self, by: int, now_s: float) -> None:
        """So many come, or go if it is negative."""
        self.request_s += self.num * (now_s - self.changed_s)
        self.changed_s = now_s
        self.num += by
        self.most = max(self.most, self.num)
