"""The results as one page that needs no other file, and as Markdown, LaTeX and CSV; every number names its runs."""

from stablenet.report.build import Report, build_report
from stablenet.report.gather import ReportSettings

__all__ = ["Report", "ReportSettings", "build_report"]
