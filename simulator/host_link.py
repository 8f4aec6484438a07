"""One direction of a host's link to its devices: it copies one thing after the other, first come, first served."""

__all__ = ["HostLink"]


class HostLink:
    """It needs no process of its own: when a copy ends is known when it is asked for."""

    __slots__ = ("busy_s", "bytes_per_s", "free_at_s", "num_bytes")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at_s = 0.0
        """When all that it was given so far is there."""
        self.busy_s = 0.0
        self.num_bytes = 0
        """It was given so far."""

    def wait_s(self, now_s: float) -> float:
        """How long a copy that is asked for now waits for those before it."""
        return max(0.0, self.free_at_s - now_s)

    def backlog_bytes(self, now_s: float) -> float:
        """Of what it was given, what is still to be copied."""
        return self.wait_s(now_s) * self.bytes_per_s

    def send(self, num_bytes: int, now_s: float) -> float:
        """Copy so many bytes after all others; gives back when they are there."""
        copy_s = num_bytes / self.bytes_per_s
        self.free_at_s = max(self.free_at_s, now_s) + copy_s
        self.busy_s += copy_s
        self.num_bytes += num_bytes
        return self.free_at_s
