"""The paper's numbers beside ours: every number is the one of its runs, gains are paired, what is missing is named."""

from stablenet.pages import write_points
from stablenet.report.comparisons import write_comparison


def find_line(page, start):
    (line,) = [line for line in page.splitlines() if line.startswith(start)]
    return line


def test_numbers_stand_beside_the_papers(result):
    page = write_comparison([result])
    cell = result.cell("erm", "easy")
    ours = f"60.00 / **{cell.mean:.1f} ± {cell.deviation:.1f} [2]** ({write_points(cell.difference)})"
    assert ours in page
    assert "10.25 / not run" in find_line(page, "| CORAL")
    assert "- a note" in page


def test_gains_are_those_over_plain_training(result):
    line = find_line(write_comparison([result]), "Gain over plain training, dr0.9")
    versus = result.cell("stablenet", "hard").versus
    assert f"StableNet: paper +5.5, ours {write_points(versus.mean)} [{write_points(versus.low)}" in line
    assert "CORAL" not in line


def test_what_was_never_run_is_named(result):
    page = write_comparison([result]).partition("## Never run")[2]
    assert "- tiny, CORAL* (approximation)" not in page
    assert find_line(page, "- tiny, CORAL") == "- tiny, CORAL*: every column"
    assert "tiny, ERM" not in page
    assert find_line(page, "- Table 4 as printed").endswith(
        "needs pacs, vlcs, weights of ResNet-18. PACS with ResNet-50, some methods: results/pacs."
    )
