"""Tables as columns, name to values, all of one length. pandas is loaded only where somebody wants it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Columns", "frame_of", "write_parquet"]


class Columns(Protocol):
    """Name to an array [rows] of numbers, or of texts and None. A dict of arrays is one, and a pandas.DataFrame."""

    def __getitem__(self, name: str, /) -> Any: ...

    def items(self) -> Iterable[tuple[Any, Any]]:
        """(name, values) of each column, in order."""


def frame_of(columns: Columns) -> "pd.DataFrame":
    """The table for pandas, without a copy of the numbers."""
    import pandas as pd

    series = {
        name: pd.Series(values, dtype=object if np.asarray(values).dtype == object else None, copy=False)
        for name, values in columns.items()
    }
    return pd.DataFrame(series, copy=False)


def write_parquet(columns: Columns, path: Path) -> None:
    """Write the table; NaN and None become null.

    The arrays are handed over as buffers: pyarrow's own conversion would load pandas.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: _arrow_array(np.asarray(values)) for name, values in columns.items()}
    pq.write_table(pa.Table.from_arrays(list(arrays.values()), names=list(arrays)), path)


def _arrow_array(values: np.ndarray) -> Any:
    import pyarrow as pa

    if values.dtype == object:
        return _arrow_texts(values.tolist())
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])
    nulls = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=np.bool_)
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_bits(~nulls), pa.py_buffer(values)])


def _arrow_texts(texts: list[str | None]) -> Any:
    import pyarrow as pa

    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    is_there = np.array([text is not None for text in texts], dtype=np.bool_)
    buffers = [_bits(is_there), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers)


def _bits(is_valid: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))
