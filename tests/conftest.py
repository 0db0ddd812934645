"""What the tests share: the instruction sets to run on, the folder of data sets, and how Hypothesis searches."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from aniso import _core

# A loaded machine must not fail a test, and two runs of the same sources must give the same verdict.
# The fixture isa is a name, so that examples may share it.
settings.register_profile(
    "aniso",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("aniso")


@pytest.fixture(params=_core.isas())
def isa(request: pytest.FixtureRequest) -> str:
    """The name of an instruction set that this machine can run; the test runs once for each."""
    return str(request.param)


@pytest.fixture
def data_file() -> Callable[[str], Path]:
    """data_file("glove-100-angular.hdf5") is the path of that data set; the test is skipped where it is not there."""

    def find(name: str) -> Path:
        folder = Path(os.environ.get("ANISO_DATA") or Path.home() / ".cache" / "aniso")
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no data set {name} in {folder} (ANISO_DATA names another folder)")
        return path

    return find
