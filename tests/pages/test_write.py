"""Pages hold any name, also one that is no text."""

from __future__ import annotations

from stablenet.pages import write


def test_a_name_that_is_no_text_is_shown_with_escapes(monkeypatch, tmp_path):
    from jinja2 import DictLoader

    monkeypatch.setattr("jinja2.PackageLoader", lambda *words: DictLoader({"page": "{{ name }}"}))
    page = write.render("page", {"name": "a\udcff<b>"})
    page.encode()
    assert page == "a\\udcff&lt;b&gt;"
