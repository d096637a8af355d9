"""`stablenet paper`: names all the paper shows, with commands that exist, and writes the page beside the paper's."""

from tests.docs.commands import check_command
from typer.testing import CliRunner

from stablenet.bench import list_tables
from stablenet.bench.results import list_items
from stablenet.cli.verbs import app
from stablenet.data.sources import SOURCES
from stablenet.errors import UserError


def call(*words):
    return CliRunner().invoke(app, ["paper", *map(str, words)])


def test_every_table_of_the_package_belongs_to_something_the_paper_shows():
    """But the embedded one, which is not the paper's; and all commands, sources and tables exist."""
    items = list_items()
    assert {name for item in items for name in (*item.tables, *item.near)} == set(list_tables()) - {"embedded"}
    for item in items:
        assert {need for need in item.needs if not need.startswith("weights of")} <= set(SOURCES)
        assert bool(item.hours) == bool(item.tables)
        for command in item.commands:
            check_command(command)


def test_the_list_is_printed_without_runs(tmp_path):
    result = call("--runs", tmp_path / "none")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert sum(not line.startswith(" ") for line in lines) == len(list_items()) + 1
    start = lines.index("Table 4: classic on PACS and VLCS")
    assert lines[start + 1].strip() == "stablenet bench run classic"
    assert "needs pacs, vlcs" in lines[start + 3]
    assert "about 4.5 GPU hours" in lines[start + 3]


def test_a_page_needs_a_folder_of_runs(tmp_path):
    result = call("--runs", tmp_path / "none", "--page", tmp_path / "page.md")
    assert isinstance(result.exception, UserError)
    assert not (tmp_path / "page.md").exists()
    (tmp_path / "runs").mkdir()
    assert call("--runs", tmp_path / "runs", "--page", tmp_path / "page.md").exit_code == 0
    page = (tmp_path / "page.md").read_text()
    assert "| MetaReg* (approximation) | 83.70° / not run | 77.20° / not run |" in page
    assert "- paper-resnet50, M-ADA: every column" in page
    assert "as printed, unbalanced 3:1:1" not in page.partition("## Never run")[0]
    assert "- Appendix, unbalanced 3:1:1 as printed" in page
