"""The diagnosis and the table page in a browser: accessible, no overflow, pictures by keyboard, scripts kept out."""

import numpy as np
import pandas as pd
import pytest

from stablenet.diagnose.diagnosis_page import Asked, write_page
from stablenet.tabular.fit import TableChoices, fit_table
from stablenet.tabular.fit import write_page as write_table_page
from tests.diagnose.test_diagnosis_page_next_steps import HOSTILE, make
from tests.pages.checks import fetch_axe, find_faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages of several kinds, one of them with hostile and endless names."""
    folder = tmp_path_factory.mktemp("pages")
    asked = Asked(kind="own images", data="my-pictures")
    write_page(make(), folder / "diagnosis.html", "stablenet diagnose my-pictures", 3.0, asked)
    names = (HOSTILE, "a_name_without_any_space_that_is_far_too_long_for_a_telephone_" * 3)
    write_page(make(classes=names, contexts=names), folder / "hostile.html", HOSTILE, 3.0, asked)
    g = np.random.default_rng(0)
    frame = pd.DataFrame(g.normal(size=(90, 3)), columns=["rain", "wind" * 30, "sun"])
    frame = frame.assign(site=np.repeat(["north", "south", HOSTILE], 30), yield_=frame["rain"] + g.normal(size=90))
    write_table_page(fit_table(frame, TableChoices(target="yield_", environment="site")), folder / "table.html")
    return folder


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (400, "light"), (400, "dark")])
@pytest.mark.parametrize("name", ["diagnosis", "hostile", "table"])
def test_no_page_has_a_fault(visit, folder, name, width, scheme):
    assert find_faults(visit(folder / f"{name}.html", width, scheme)) == []


def test_axe_is_among_the_checks():
    if fetch_axe() is None:
        pytest.skip("NO AXE: npm or its registry is not at hand; pages are checked by the rules in checks.py alone")


def test_the_classes_are_on_the_first_screen(visit, folder):
    page = visit(folder / "diagnosis.html")
    boxes = [row.bounding_box() for row in page.locator(".class").all()]
    assert len(boxes) == 2
    assert all(box["y"] + box["height"] < 860 for box in boxes)
    sizes = [image.bounding_box() for image in page.locator(".class img").all()]
    assert all(min(box["width"], box["height"]) >= 96 for box in sizes)


def test_pictures_enlarge_by_keyboard(visit, folder):
    page = visit(folder / "diagnosis.html")
    first = page.locator("button.zoom").first
    small = first.locator("img").bounding_box()["width"]
    first.focus()
    page.keyboard.press("Enter")
    image = page.locator("#enlarged[open] img")
    assert image.bounding_box()["width"] > 3 * small
    told = page.locator("#enlarged figcaption").inner_text()
    assert told == "cat in indoors, cat 38 · ×0.79"
    page.keyboard.press("ArrowRight")
    assert page.locator("#enlarged figcaption").inner_text() != told
    page.keyboard.press("ArrowLeft")
    assert page.locator("#enlarged figcaption").inner_text() == told
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.className") == "zoom"


def test_pictures_enlarge_by_mouse_and_close_beside_them(visit, folder):
    page = visit(folder / "diagnosis.html", 400)
    page.locator("button.zoom").nth(1).click()
    assert page.locator("#enlarged img").bounding_box()["width"] <= 400
    page.mouse.click(3, 3)
    assert page.locator("dialog[open]").count() == 0


def test_the_policy_refuses_what_names_may_bring_in(chromium, folder, tmp_path):
    """A page into which an escape failed to keep a script, a handler, a style and a request."""
    text = (folder / "diagnosis.html").read_text(encoding="utf-8")
    attack = (
        "<script>document.title = 'taken'</script><img src=x alt=x onerror=\"document.title = 'taken'\">"
        "<style>main { display: none }</style><img src='https://example.org/spy.png' alt=spy>"
    )
    (tmp_path / "page.html").write_text(text.replace("</header>", attack + "</header>"), encoding="utf-8")
    page, asked, refused = chromium.new_page(), [], []
    page.on("response", lambda response: asked.append(response.url))
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    page.route("http*://**", lambda route: route.fulfill(body="spied"))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.title() == "StableNet diagnosis of pets"
    assert page.locator("main").is_visible()
    assert not any(url.startswith("http") for url in asked)
    assert sum("Content Security Policy" in text for text in refused) >= 4
    page.close()


def test_print_opens_what_folds_and_is_light(visit, folder, tmp_path):
    page = visit(folder / "diagnosis.html", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 34, 48)"
    page.pdf(path=tmp_path / "page.pdf")
    assert page.locator("details:not([open])").count() == 0
