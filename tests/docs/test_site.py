"""The built site: whole, and without anything from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT, WRITTEN

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
ELSEWHERE = re.compile(r"""(?:<(?:script|img|link|iframe)[^>]*(?:src|href)=|@import\s+|url\()["']?https?://[^"')\s]+""")


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in WRITTEN:
        assert (tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()
    files = [path for kind in ("*.html", "*.css") for path in tmp_path.rglob(kind)]
    assert not [match for path in files for match in ELSEWHERE.findall(path.read_text(encoding="utf-8"))]


def test_something_from_elsewhere_is_found():
    assert ELSEWHERE.search('<script src="https://example.org/x.js"></script>')
    assert ELSEWHERE.search('<link rel="stylesheet" href="https://example.org/x.css">')
    assert ELSEWHERE.search("@font-face { src: url(https://example.org/x.woff) }")
    assert not ELSEWHERE.search('<a href="https://example.org">a link</a><link rel="canonical" href="index.html">')
