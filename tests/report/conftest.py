import pytest

from stablenet.bench import collect, find_table
from stablenet.files import lock
from stablenet.report import ReportSettings, build_report
from tests.report.made import copy_runs, make_runs


@pytest.fixture(scope="session")
def made(tmp_path_factory, worker_id):
    """A folder with tiny.toml and its runs, trained once for all workers; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "tiny-runs"
    with lock(shared):
        if not (shared / "done").exists():
            shared.mkdir(exist_ok=True)
            make_runs(shared)
            (shared / "done").touch()
    own = tmp_path_factory.mktemp("made")
    copy_runs(shared, own)
    return own


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
