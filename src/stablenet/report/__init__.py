"""The results as one self-contained page, and as Markdown, LaTeX and CSV; every number names its runs.

In reading order: `gather` (reads the run folders), `comparisons` (with plain training, and the headline), `detail`
(whether methods acted; groups, classes, confusions and calibration), `inside` (saliency maps, weights and offsets of
some runs), `charts`, `report_page` (all of it, as a page), `serve` (the page on localhost, kept current) and
`paper_page` (the paper's numbers next to ours).
"""

from stablenet.report.gather import ReportSettings
from stablenet.report.report_page import Closing, Report, build_report

__all__ = ["Closing", "Report", "ReportSettings", "build_report"]
