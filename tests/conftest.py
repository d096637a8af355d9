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


@pytest.fixture
def visit(chromium):
    """Opens a file; at the end nothing may have gone wrong, and nothing may have been asked of a network."""
    opened, errors = [], []

    def open_one(path, width=1300, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.route("http*://**", lambda route: errors.append(route.request.url) or route.abort())
        page.goto(path.as_uri())
        return page

    yield open_one
    for context in opened:
        context.close()
    assert errors == []
