"""The whole report: gather, look inside networks, write the page and the tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stablenet.errors import UserError
from stablenet.pages import write_text
from stablenet.report.gather import FORMATS, Gathered, ReportSettings, gather
from stablenet.report.inside import Inside, look_inside
from stablenet.report.report_page import render_page


@dataclass(frozen=True)
class Report:
    """What was written.   files: the tables as Markdown, LaTeX and CSV."""

    gathered: Gathered
    inside: tuple[Inside, ...]
    page: Path
    files: tuple[Path, ...]

    @property
    def notes(self) -> list[str]:
        """Sentences for whoever asked for the report."""
        blind = [f"the networks of {found.table} were not looked into: {found.failure}" for found in self.inside]
        return [*self.gathered.notes, *(note for note, found in zip(blind, self.inside, strict=True) if found.failure)]


def build_report(settings: ReportSettings) -> Report:
    """Read the runs, look inside some, and write the page and the tables beside it."""
    gathered = gather(settings)
    inside = look_inside(gathered.results, settings) if settings.panels else []
    text = render_page(gathered, inside, settings)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {settings.output}: {error.strerror}; choose another --output") from error
    write_text(settings.page, text)
    files = []
    for result in gathered.results:
        for ending, write in FORMATS.items():
            files.append(settings.output / f"{result.table.name}.{ending}")
            write_text(files[-1], write(result))
    return Report(gathered, tuple(inside), settings.page, tuple(files))
