"""What every test may use."""

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure: an example may take its time.
settings.register_profile("kvplan", deadline=None)
settings.load_profile("kvplan")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces and measurements; it lies beside the project and is not part of it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the traces and measurements in ../shared/data")
    return folder
