import pytest

from stablenet.engine.run import load_run
from tests.report.conftest import made

__all__ = ["made"]


@pytest.fixture(scope="session")
def runs(made):
    """ERM and StableNet of one split."""
    folder = made / "runs"
    return [load_run(next(folder.glob(f"embedded-dr0.9-{name}-seed0-*"))) for name in ("erm", "stablenet")]


@pytest.fixture(scope="session")
def other(made):
    """A run of another split."""
    return load_run(next((made / "runs").glob("embedded-dr0.9-erm-seed1-*")))
