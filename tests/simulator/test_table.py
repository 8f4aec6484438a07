"""Tables as columns: for pandas, and as a file."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from simulator.table import frame_of, write_parquet

COLUMNS = {
    "name": np.array(["a", None, "żółw"], dtype=object),
    "nothing": np.array([None, None, None], dtype=object),
    "tokens": np.array([1, 2, 1 << 40]),
    "seconds": np.array([0.5, np.nan, 2.0]),
}


def test_a_frame_has_the_columns_as_they_are():
    frame = frame_of(COLUMNS)
    assert frame["name"].tolist() == ["a", None, "żółw"]
    assert [frame[name].dtype for name in ("tokens", "seconds")] == [np.int64, np.float64]


@pytest.mark.parametrize("num_rows", [3, 1, 0])
def test_a_file_gives_back_what_was_written(tmp_path, num_rows):
    written = {name: values[:num_rows] for name, values in COLUMNS.items()}
    write_parquet(written, tmp_path / "table.parquet")
    read = pd.read_parquet(tmp_path / "table.parquet")
    assert list(read.columns) == list(COLUMNS)
    assert read["tokens"].tolist() == written["tokens"].tolist()
    np.testing.assert_array_equal(read["seconds"], written["seconds"])
    for name in ("name", "nothing"):
        assert [None if pd.isna(text) else text for text in read[name]] == written[name].tolist()


def test_every_second_value_of_a_column_is_written(tmp_path):
    write_parquet({"tokens": np.arange(10)[::2]}, tmp_path / "table.parquet")
    assert pd.read_parquet(tmp_path / "table.parquet")["tokens"].tolist() == [0, 2, 4, 6, 8]


def test_a_run_without_a_report_does_without_pandas(tmp_path):
    """It takes a third of a second to load, and pyarrow loads it unasked."""
    program = (
        "import sys; sys.argv[1:] = 'simulate llama-3.1-8b --gpu l4 --max-model-len 2048 --request-rate 1 --input-len 9"
        f" --output-len 9 --num-requests 2 --no-report --json --out {tmp_path}'.split();"
        " from simulator.cli import app; app(standalone_mode=False); print('pandas' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).endswith("False\n")


def test_truth_is_stored_in_bits(tmp_path):
    values = np.array([True, False, False, True, True] * 3)
    write_parquet({"is_it": values}, tmp_path / "table.parquet")
    assert pd.read_parquet(tmp_path / "table.parquet")["is_it"].tolist() == values.tolist()
