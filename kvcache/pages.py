"""PyTorch tensors behind the block ids: the pool's bytes, every layer's views of them, and what they really cost.

The only module that knows torch. Nothing is copied: a view is the pool's own memory, typed and strided.

```
pages = KVPages(layout, "cuda")
key, value = pages.views(layer)    # each [num_blocks, block_size, kv_heads, head_size]
key[block, offset]                 # the slot that `slot_mapping` calls block * block_size + offset
```
"""

import gc
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvcache.errors import DeviceMemoryError, KVCacheError
from kvcache.layout import GIB, KVCacheLayout
from kvcache.placement import LAYER_OUTERMOST, LayerPages, Part, place
from kvcache.specs import DTYPE_BYTES

__all__ = [
    "MARK_BYTES",
    "TORCH_DTYPES",
    "KVPages",
    "Words",
    "allocation_bytes",
    "check_device",
    "copy_bytes_per_s",
    "free_bytes",
    "gather_bytes_per_s",
    "memory_now",
    "release_unused",
    "slot_mapping",
]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
WORD_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MARK_BYTES = 8


class KVPages:
    """The pool of one rank as real memory."""

    def __init__(self, layout: KVCacheLayout, device: str = "cpu", order: str = LAYER_OUTERMOST) -> None:
        """Allocate `layout.pool_bytes`, not initialised; `order` as for `placement.place`.

        Raises DeviceMemoryError where the device has less free, KVCacheError where there is no such device.
        """
        check_device(device)
        self.placement = place(layout, order)
        self.device = device
        self.raw = _allocate(self.placement.pool_bytes, device)
        """[pool_bytes], bytes: the one allocation."""
        self._layers = {pages.layer: pages for pages in self.placement.layers}
        num_blocks, start = layout.num_blocks, 0
        self.buffers = []
        """Each [num_blocks, bytes of a piece]: what the layers of one place in every group share."""
        for num_bytes in self.placement.buffer_bytes:
            self.buffers.append(self.raw[start : start + num_bytes].view(num_blocks, num_bytes // num_blocks))
            start += num_bytes

    @property
    def storage_bytes(self) -> int:
        """Bytes of the storage behind all views."""
        return int(self.raw.untyped_storage().nbytes())

    def views(self, layer: int) -> tuple[torch.Tensor, ...]:
        """The layer's parts for all blocks: (key, value), (latent,) or its states; each [num_blocks, *part.shape].

        Raises KVCacheError where elements would not lie at multiples of their size.
        """
        pages = self._layers[layer]
        return tuple(self._view(pages, part) for part in pages.parts)

    def _view(self, pages: LayerPages, part: Part) -> torch.Tensor:
        element = DTYPE_BYTES[part.dtype]
        start = pages.start_bytes + part.offset_bytes
        if start % element or pages.stride_bytes % element:
            raise KVCacheError(
                f"layer {pages.layer}: its {part.name} begins at byte {part.offset_bytes} of pages of"
                f" {pages.stride_bytes:,} bytes, so it cannot be viewed as {part.dtype}"
            )
        strides = [1]
        for size in reversed(part.shape[1:]):
            strides.insert(0, strides[0] * size)
        whole = len(self.raw) // element * element
        typed = self.raw[:whole].view(TORCH_DTYPES[part.dtype])
        shape = (self.placement.num_blocks, *part.shape)
        return typed.as_strided(shape, (pages.stride_bytes // element, *strides), start // element)

    def words(self, word_bytes: int) -> "Words":
        """The pool as integers of so many bytes, to write and read marks in bulk."""
        return Words(self.raw, word_bytes)


def slot_mapping(block_ids: Any, positions: Any, block_size: int, first_position: int = 0) -> Any:
    """The slot of each token position, `block_id * block_size + offset`: arrays or tensors of whole numbers.

    `block_ids` is a block table in one group, from table position `first_position` on.
    """
    return block_ids[positions // block_size - first_position] * block_size + positions % block_size


class Words:
    """The pool's bytes as words: marks of 8 bytes each, written and read at any number of places at once.

    On a CPU numpy looks at the same memory, for it costs a third of torch's calls; the two index alike.
    """

    def __init__(self, raw: torch.Tensor, word_bytes: int) -> None:
        self.word_bytes = word_bytes
        self._per_mark = MARK_BYTES // word_bytes
        whole = len(raw) // word_bytes * word_bytes
        typed = raw[:whole].view(WORD_DTYPES[word_bytes])
        self._on_device = raw.device.type != "cpu"
        self._device = raw.device
        self._words: Any = typed if self._on_device else typed.numpy()

    def write(self, places: np.ndarray, marks: np.ndarray) -> None:
        """Write each mark (int64) where its place says, counted in words from the pool's beginning."""
        self._words[self._indices(places)] = self._values(marks)

    def read(self, places: np.ndarray) -> np.ndarray:
        """The marks at these places, int64 of the same shape."""
        found = self._words[self._indices(places)]
        found = np.ascontiguousarray(found.cpu().numpy() if self._on_device else found)
        return found if self._per_mark == 1 else found.view(np.int64)[..., 0]

    def differ(self, places: np.ndarray, marks: np.ndarray) -> bool:
        """Whether any of these places holds another mark."""
        return bool((self._words[self._indices(places)] != self._values(marks)).any())

    def _indices(self, places: np.ndarray) -> Any:
        if self._per_mark > 1:
            places = places[..., None] + np.arange(self._per_mark)
        return self._moved(places)

    def _values(self, marks: np.ndarray) -> Any:
        if self._per_mark > 1:
            dtype = {1: np.uint8, 2: np.int16, 4: np.int32}[self.word_bytes]
            marks = np.ascontiguousarray(marks)[..., None].view(dtype)
        return self._moved(marks)

    def _moved(self, array: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device) if self._on_device else array


# Devices.


def check_device(device: str) -> None:
    """Raise KVCacheError unless tensors can be made on `device`."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise KVCacheError(f"--back-with: no CUDA device is there for {device} (torch {torch.__version__})")
    if torch.device(device).type == "cuda":
        torch.cuda.init()


def release_unused(device: str) -> None:
    """Give back what nobody uses: a pool of an earlier run may wait for the garbage collector."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _allocate(num_bytes: int, device: str) -> torch.Tensor:
    free = free_bytes(device)
    if num_bytes > free:
        raise _too_small(num_bytes, free, device)
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    except (torch.cuda.OutOfMemoryError, MemoryError, RuntimeError):
        raise _too_small(num_bytes, free_bytes(device), device) from None


def _too_small(num_bytes: int, free: int, device: str) -> DeviceMemoryError:
    fraction = int(min(free, num_bytes) / num_bytes * 90) / 100
    advice = f"; --pool-fraction {fraction} would fit" if fraction else ""
    return DeviceMemoryError(
        f"--back-with: the pool needs {num_bytes / GIB:.2f} GiB, {device} has {free / GIB:.2f} GiB free{advice}"
    )


def free_bytes(device: str) -> int:
    """Bytes that can still be allocated on a device, as it says itself."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def memory_now(device: str) -> dict[str, int]:
    """What a device's memory looks like, in bytes.

    On CUDA: allocated, reserved and peak by torch's allocator, and the device's own free memory. On a CPU: this
    process's resident set, and what the machine has available.
    """
    if torch.device(device).type != "cuda":
        pages = next(iter(_lines("/proc/self/statm")), "0 0").split()[1]
        return {"resident_bytes": int(pages) * os.sysconf("SC_PAGE_SIZE"), "device_free_bytes": free_bytes(device)}
    torch.cuda.synchronize(device)
    return {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "device_free_bytes": free_bytes(device),
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="ascii").splitlines() if file.exists() else []


def allocation_bytes(sizes: Iterable[int], device: str) -> list[dict[str, int]]:
    """What torch's allocator takes for tensors of these bytes, each allocated alone and given back.

    Rows of requested, allocated and reserved bytes: on CUDA it rounds up to 512 bytes, and takes from the device
    multiples of 2 MiB where 10 MiB or more are asked for (torch's CUDACachingAllocator); a CPU rounds nothing.
    """
    rows = []
    for size in sizes:
        if torch.device(device).type != "cuda":
            stored = torch.empty(size, dtype=torch.uint8).untyped_storage().nbytes()
            rows.append({"requested": size, "allocated": stored, "reserved": stored})
            continue
        torch.cuda.empty_cache()
        before = memory_now(device)
        tensor = torch.empty(size, dtype=torch.uint8, device=device)
        after = memory_now(device)
        del tensor
        torch.cuda.empty_cache()
        grown = {name: after[f"{name}_bytes"] - before[f"{name}_bytes"] for name in ("allocated", "reserved")}
        rows.append({"requested": size, **grown})
    return rows


# Bandwidth.


def copy_bytes_per_s(device: str, num_bytes: int = GIB, repeats: int = 5) -> float:
    """Bytes read and written per second by copying `num_bytes` from one place of a device to another."""
    check_device(device)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / _seconds(lambda: target.copy_(source), device, repeats)


def gather_bytes_per_s(
    device: str, page_bytes: int, pool_bytes: int = GIB, read_bytes: int = GIB // 4, repeats: int = 5
) -> float:
    """Bytes read per second by gathering pages of `page_bytes` in random order out of a pool, into one place.

    What a kernel for paged attention reads, without its arithmetic; the bytes that the gather writes are not counted.
    """
    check_device(device)
    pool = torch.zeros(pool_bytes // page_bytes, page_bytes // 8, dtype=torch.int64, device=device)
    num_pages = min(len(pool), max(1, read_bytes // page_bytes))
    ids = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[:num_pages].to(device)
    gathered = torch.empty(num_pages, page_bytes // 8, dtype=torch.int64, device=device)
    seconds = _seconds(lambda: torch.index_select(pool, 0, ids, out=gathered), device, repeats)
    return num_pages * page_bytes / seconds


def _seconds(run: Any, device: str, repeats: int) -> float:
    """The least time of one run, of several after a first one."""
    is_cuda = torch.device(device).type == "cuda"
    times = []
    for _ in range(repeats + 1):
        if is_cuda:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return max(min(times[1:]), 1e-9)
