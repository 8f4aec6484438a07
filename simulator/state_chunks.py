"""Where prompt chunks end in models that cache Mamba states: a state is written at the end of a chunk only."""

from simulator.request import Request

__all__ = ["chunk_for_states"]


def chunk_for_states(request: Request, start: int, num_new: int, block: int, max_chunk: int) -> int:
    """Cut a prompt chunk so that it ends where a Mamba state is to be kept; 0 if it had better wait.

    States are written at the ends of chunks, so chunks end at block boundaries, at the last boundary
    that another request could resume from, and where requests were seen to part.
    """
    known = request.known_tokens
    prefill_end = max(request.prompt_tokens, known - 1)
    if start >= prefill_end:
        return num_new
    end = start + num_new
    if end < prefill_end:
        aligned_end = end // block * block
        # A block too wide for one step is crossed in several, without a state to keep in between.
        if aligned_end > start or block <= max_chunk:
            end = aligned_end
    junction = request.blocks.junction
    stops = [(known - 1) // block * block]
    if start % block:
        stops.append((start // block + 1) * block)
    if start < junction < end:
        stops.append(start + (junction - start) // block * block)
    end = min((stop for stop in stops if start < stop < end), default=end)
    return max(end - start, 0)
