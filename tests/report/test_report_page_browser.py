"""The page in a real browser: no errors, sorting and details by mouse and keyboard, light, dark, phone, print."""

import shutil
import threading
from dataclasses import replace

import pytest
from PIL import Image, ImageStat

from stablenet.report.serve import Watch
from tests.pages.checks import find_faults
from tests.report.made import copy_runs
from tests.report.test_serve import wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to test the report's page"
)


@pytest.fixture
def open_page(chromium, report):
    """Opens the report; at the end nothing may have gone wrong, and nothing may have been asked of a network."""
    opened, errors = [], []

    def open_one(url=None, width=1280, height=900, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda request: errors.append(request.url))
        if url is None:
            page.route("http*://**", lambda route: errors.append(route.request.url) or route.abort())
        page.goto(url or report.page.as_uri())
        return page

    yield open_one
    for context in opened:
        context.close()
    assert errors == []


def read_column(page, place):
    cells = page.locator("#table-0 table.results tbody tr").all()
    return [row.locator("th, td").nth(place).get_attribute("data-value") for row in cells]


def test_sorting_by_mouse(open_page, result):
    page = open_page()
    head = page.locator("#table-0 thead th[aria-sort]").nth(2)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    means = sorted((result.cell(row, "hard").mean for row in ("erm", "stablenet")), reverse=True)
    assert [float(value) for value in read_column(page, 2)[:2]] == means
    assert read_column(page, 2)[2] == ""  # what is missing stays last
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(value) for value in read_column(page, 2)[:2]] == means[::-1]
    assert read_column(page, 2)[2] == ""


def test_sorting_by_keyboard(open_page):
    page = open_page()
    button = page.locator("#table-0 thead .sort").nth(0)
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("#table-0 thead th:has(.sort)").first.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert read_column(page, 0) == ["2", "1", "0"]
    page.locator("#table-0 thead .sort").nth(1).focus()
    page.keyboard.press("Space")
    assert page.locator('[aria-sort="descending"]').count() == 1


def test_text_columns_sort_as_numbers_where_they_are_numbers(open_page):
    page = open_page()
    seeds = page.locator("#runs thead .sort").nth(2)
    seeds.click()
    found = page.locator("#runs tbody tr td:nth-child(3)").all_inner_texts()
    assert found == sorted(found, reverse=True)


def test_a_number_opens_its_runs_and_escape_closes(open_page, result):
    page = open_page()
    button = page.locator('[data-cell="0/erm/average"]')
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    assert dialog.locator("h2").inner_text() == "ERM, Avg."
    assert f"mean {result.cell('erm', 'average').mean:.2f} %" in dialog.inner_text()
    commands = dialog.locator("pre.command").all_inner_texts()
    assert len(commands) == 4
    assert all(text.startswith("stablenet train --recipe embedded-dr") for text in commands)
    dialog.locator("summary").first.click()
    assert '"train_size": 60' in dialog.locator("pre.config").first.inner_text()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.dataset.cell") == "0/erm/average"


def test_a_missing_cell_says_why(open_page):
    page = open_page()
    page.locator('[data-cell="0/coral/hard"]').click()
    text = page.locator("dialog[open]").inner_text()
    assert "missing: 1 unfinished" in text
    assert "not evaluated" in text
    page.locator("#details .close").click()
    page.locator("#runs [data-run]").first.click()
    assert page.locator("dialog[open] pre.config").is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_it_fits_and_follows_the_colour_scheme(open_page, tmp_path, width, scheme):
    page = open_page(width=width, height=844, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot = tmp_path / f"{scheme}-{width}.png"
    page.screenshot(path=shot, full_page=True)
    brightness = ImageStat.Stat(Image.open(shot).convert("L")).mean[0]
    assert (brightness > 200) if scheme == "light" else (brightness < 70)


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (400, "dark")])
def test_it_has_no_fault(open_page, width, scheme):
    """Contrast, names for screen readers, what sticks out, and all that axe-core finds."""
    page = open_page(width=width, scheme=scheme)
    assert find_faults(page) == []
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"


def test_it_prints_with_everything_open(open_page, tmp_path):
    page = open_page()
    assert page.locator("details.training[open]").count() == 0
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    assert page.locator("details.training[open]").count() == 1


def read_served(page):
    """The page as it stands; nothing while it is being loaded again."""
    try:
        return page.content()
    except Exception as error:  # of playwright, which is imported only where it is there
        if "navigating" not in str(error):
            raise
        return ""


def test_a_watched_page_loads_itself_again(open_page, settings, tmp_path):
    runs = copy_runs(settings.runs.parent, tmp_path)
    watch = Watch(replace(settings, runs=runs, output=tmp_path / "report", panels=0), 0, 0.1)
    thread = threading.Thread(target=watch.run)
    thread.start()
    wait_for(lambda: watch.stamp)
    try:
        page = open_page(watch.url)
        page.wait_for_timeout(2500)  # the page's first look at the stamp
        gone = next(runs.glob("embedded-dr0.9-erm-seed1-*"))
        shutil.rmtree(gone)
        wait_for(lambda: (text := read_served(page)) and gone.name not in text)
    finally:
        watch.stop()
        thread.join(30)
