import pytest

from stablenet.bench import collect, find_table
from stablenet.report import ReportSettings, build_report
from tests.report.made import make_runs


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with tiny.toml and its runs; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    make_runs(folder)
    return folder


@pytest.fixture(scope="session")
def settings(made):
    return ReportSettings(
        runs=made / "runs", output=made / "report", tables=(str(made / "tiny.toml"),), images=3, device="cpu"
    )


@pytest.fixture(scope="session")
def report(settings):
    return build_report(settings)


@pytest.fixture(scope="session")
def result(made):
    return collect(find_table(str(made / "tiny.toml")), made / "runs")
