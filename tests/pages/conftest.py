import pytest


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
