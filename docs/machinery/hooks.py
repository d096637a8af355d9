"""MkDocs calls these: generated pages join the written ones, excerpts get their line numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.machinery.excerpts import number_excerpts
from docs.machinery.links import ROOT, adapt_links
from docs.machinery.pages import fill_in, make_pages, read_results
from mkdocs.structure.files import File, Files


def on_config(config: Any) -> Any:
    """A folder in the navigation stands for all generated pages in it."""
    paths = list(make_pages())
    config["nav"] = [_unfold(entry, paths) for entry in config["nav"]]
    return config


def _unfold(entry: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    ((title, target),) = entry.items()
    if not isinstance(target, str) or not target.endswith("/"):
        return entry
    inside = [path for path in paths if path.startswith(target)]
    return {title: sorted(inside, key=lambda path: not path.endswith("index.md"))}


def on_files(files: Files, config: Any) -> Files:
    for path, text in make_pages().items():
        files.append(File.generated(config, path, content=text))
    pictures = {picture for _, _, shown in read_results() for picture in shown}
    for picture in sorted(pictures):
        files.append(File.generated(config, f"results/files/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Generated pages have the site's links already."""
    if page.file.abs_src_path is not None and Path(page.file.abs_src_path).is_relative_to(ROOT / "docs"):
        markdown, _shown = adapt_links(Path(page.file.abs_src_path), page.file.src_uri, markdown)
    return number_excerpts(fill_in(markdown))
