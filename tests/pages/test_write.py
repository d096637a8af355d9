"""Pages hold any name, also one that is no text."""

from __future__ import annotations

from stablenet.pages import write


def test_a_name_that_is_no_text_is_shown_with_escapes(monkeypatch, tmp_path):
    from jinja2 import DictLoader

    monkeypatch.setattr("jinja2.PackageLoader", lambda *words: DictLoader({"page": "{{ name }}"}))
    page = write.render("page", {"name": "a\udcff<b>"})
    page.encode()
    assert page == "a\\udcff&lt;b&gt;"


def test_quoted_commands_are_code_and_names_break_after_underscores():
    assert write.mark_code("see `stablenet <x>`, & more") == "see <code>stablenet &lt;x&gt;</code>, &amp; more"
    assert write.mark_code("a `lonely <b>") == "a `lonely &lt;b&gt;"
    assert write.mark_breaks("pit_bull<b>_terrier_") == "pit_<wbr>bull&lt;b&gt;_<wbr>terrier_"
