"""The paper's numbers beside ours: every number is the one of its runs, gains are paired, what is missing is named."""

from dataclasses import replace

import pytest

from stablenet.bench import collect, find_table
from stablenet.bench.results import SeedValue
from stablenet.errors import UserError
from stablenet.pages import write_points
from stablenet.report.paper_page import find_origins, lend_numbers, write_comparison


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
    """Cells of the paper's tables by group and row, its figures, and what is prepared; nothing of one's own tables."""
    page = write_comparison([result]).partition("## Never run")[2]
    assert "tiny" not in page.partition("This page again")[0]
    line = find_line(page, "- Unbalanced, 3:1:1 (unbalanced-3)")
    assert line.endswith("VLCS: JiGen, M-ADA, DG-MMLD, Focal loss, RSC, ResNet-18, StableNet")
    assert "Epi-FCR*, FAR* (approximation), MetaReg* (approximation)" in find_line(page, "- Classic (classic)")
    assert find_line(page, "- Figure 3a as printed").partition("it needs nico. ")[2].startswith("In place of NICO")


def test_an_own_table_gets_the_papers_numbers_by_recipe_and_method(tmp_path):
    """StableNet's only for the preset `paper`; a mean where it is one of the same columns; other rows are left out."""
    table = lend_numbers(find_table(str(write_own(tmp_path))))
    printed = find_table("unbalanced-5")
    assert [row.id for row in table.rows] == ["erm", "literal", "stablenet-recommended"]
    assert table.number("erm", "art") == printed.number("erm", "pacs-art_painting")
    assert table.number("literal", "all").value == 79.66
    assert table.number("erm", "two").status == table.number("stablenet-recommended", "art").status == "none"
    assert find_origins(table) == "Unbalanced, 5:1:1 (unbalanced-5)"
    ours = find_table("paper-resnet50")
    assert lend_numbers(ours) is ours


def test_cells_that_were_run_in_another_setting_are_not_called_never_run(tmp_path):
    table = lend_numbers(find_table(str(write_own(tmp_path))))
    result = collect(table, tmp_path / "runs")
    cells = dict(result.cells)
    for column in ("art", "cartoon", "sketch", "photo", "all"):
        cells["erm", column] = replace(cells["erm", column], state="measured", values=(SeedValue(0, 70.0, ()),))
    cells["literal", "art"] = replace(cells["literal", "art"], state="measured", values=(SeedValue(0, 80.0, ()),))
    page = write_comparison([replace(result, cells=cells)])
    assert "68.41 / **70.0 [1]** (+1.6)" in find_line(page, "| Plain")
    line = find_line(page, "- Unbalanced, 5:1:1").partition("PACS: ")[2]
    assert line.partition(";")[0] == "JiGen, M-ADA, DG-MMLD, RSC"
    assert "PACS Cartoon, Sketch, Photo, Avg: StableNet" in line


def test_a_table_that_is_not_the_papers_is_refused(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'title = "m"\n[[column]]\nid = "a"\nrecipe = "embedded-dr0.9"\n[[row]]\nid = "erm"\nmethod = "erm"\n'
    )
    with pytest.raises(UserError, match="trains nothing that the paper has a number for"):
        lend_numbers(find_table(str(tmp_path / "mine.toml")))


def test_only_tables_with_runs_are_shown_the_others_are_prepared(tmp_path):
    result = collect(find_table("ablation-memory-mnistm"), tmp_path)
    page = write_comparison([result])
    assert "## Ablation" not in page
    assert find_line(page, "- `stablenet bench run ablation-memory-mnistm").endswith(
        "4 of 4 cells, about 0.1 GPU hours for all of it"
    )


DOMAINS = {"art": "art_painting", "cartoon": "cartoon", "sketch": "sketch", "photo": "photo"}


def write_own(folder):
    """The four targets of unbalanced 5:1:1 with another network, under other names."""
    columns = [f'[[column]]\nid = "{id}"\nrecipe = "pacs-unbalanced-5-{name}"' for id, name in DOMAINS.items()]
    columns.append('[[column]]\nid = "all"\nmean_of = ["photo", "art", "cartoon", "sketch"]')
    columns.append('[[column]]\nid = "two"\nmean_of = ["photo", "art"]')
    rows = (
        'id = "erm"\ntitle = "Plain"\nmethod = "erm"',
        'id = "literal"\nmethod = "stablenet"\nparameters = { preset = "paper" }',
        'id = "stablenet-recommended"\nmethod = "stablenet"\nparameters = { act = "always" }',
        'id = "trial"\nmethod = "stablenet"\nparameters = { offset = 0.5 }',
        'id = "irm"\nmethod = "irm"',
    )
    path = folder / "mine.toml"
    path.write_text("\n".join(['title = "Mine"', *columns, *(f"[[row]]\n{row}" for row in rows)]))
    return path
