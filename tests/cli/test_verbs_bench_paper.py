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
    assert lines[start + 2].strip() == "stablenet bench run paper-resnet50  (about 0.2 GPU hours)"
    assert "needs pacs, vlcs" in lines[start + 3]
    assert "about 4.5 GPU hours" in lines[start + 3]


def test_a_page_needs_a_folder_of_runs(tmp_path):
    result = call("--runs", tmp_path / "none", "--page", tmp_path / "page.md")
    assert isinstance(result.exception, UserError)
    assert not (tmp_path / "page.md").exists()
    (tmp_path / "runs").mkdir()
    assert call("--runs", tmp_path / "runs", "--page", tmp_path / "page.md").exit_code == 0
    page = (tmp_path / "page.md").read_text()
    assert "paper-resnet50 --root DATA`: 442 of 442 cells, about 0.2 GPU hours for all of it" in page
    assert "MetaReg* (approximation)" in page.partition("- Classic (classic): PACS: ")[2].splitlines()[0]


def test_a_page_with_a_table_of_ones_own(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "mine.toml").write_text(
        'title = "m"\n[[column]]\nid = "a"\nrecipe = "mnistm-dr0.9"\n[[row]]\nid = "erm"\nmethod = "erm"\n'
    )
    options = ("--runs", tmp_path / "runs", "--page", tmp_path / "page.md")
    assert call(*options, "--tables", tmp_path / "mine.toml").exit_code == 0
    assert isinstance(call(*options, "--tables", tmp_path / "none.toml").exception, UserError)
