import pytest
import torch

from tests.pages.checks import CHROMIUM


@pytest.fixture
def one_thread():
    """Sums in a fixed order, which shows in their last bits; and small networks lose by sharing cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def chromium():
    """A browser; without one the tests that ask for it are skipped, and say so."""
    if CHROMIUM is None:
        pytest.skip("NO BROWSER: install Debian's chromium to test the pages")
    playwright = pytest.importorskip("playwright.sync_api", reason="NO PLAYWRIGHT: the pages are not tested")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
