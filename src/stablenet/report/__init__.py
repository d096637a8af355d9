"""The results as one page that needs no other file, and as Markdown, LaTeX and CSV; every number names its runs.

In reading order: `build_report` (all of it in ten lines), `gather` (what the run folders hold), `gains` (what is
gained, and the headline), `decisions` (whether methods acted), `detail` (groups, classes, confusions and calibration),
`inside` (saliency maps, weights and offsets of some runs), `charts`, `report_page` (the page), `serve` (the page on
localhost, kept current) and `paper_page` (the paper's numbers beside ours).
"""

from stablenet.report.build_report import Report, build_report
from stablenet.report.gather import ReportSettings

__all__ = ["Report", "ReportSettings", "build_report"]
