"""Pages made from the code, and the code shown in pages."""

from __future__ import annotations

import dataclasses
import re

import pytest
from docs.machinery.excerpts import Excerpt, LostExcerpt, find_excerpts, number_excerpts
from docs.machinery.links import adapt_links, find_page
from docs.machinery.pages import MORE, describe_method, fill_in, make_pages

from stablenet.algorithms import ALGORITHMS
from stablenet.cli.verbs import app
from stablenet.weighting import PRESETS, WeightingSettings
from tests.docs.blocks import FENCE, ROOT, read_blocks
from tests.docs.commands import check_command
from tests.docs.runner import run_stablenet

EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
LABELS = (
    "rff_transform",
    "cross-covariance",
    "sigmaabw",
    "learning_weight",
    "overall",
    "concat_w",
    "concat_z",
    "save_w",
    "weighted_loss",
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MADE = """
class Box:
    def add(self, a, b):
        total = a + b
        return total

def other():
    total = a + b
"""


@pytest.mark.parametrize("excerpt", list(find_excerpts(EQUATIONS)), ids=lambda e: f"{e.file}:{e.function}")
def test_the_code_still_reads_as_the_page_says(excerpt):
    assert excerpt.find() > 1


def test_every_labelled_equation_has_lines():
    for label in LABELS:
        assert f"`{label}`" in EQUATIONS, label
    assert len(list(find_excerpts(EQUATIONS))) >= len(LABELS)


def test_excerpts_are_found_in_their_function_alone(tmp_path, monkeypatch):
    (tmp_path / "made.py").write_text(MADE)
    monkeypatch.setattr("docs.machinery.excerpts.PACKAGE", tmp_path)
    assert Excerpt("made.py", "Box.add", ("total = a + b", "return total")).find() == 4
    assert Excerpt("made.py", "other", ("total = a + b",)).find() == 8
    for lost in (
        Excerpt("made.py", "Box.add", ("total = a - b",)),
        Excerpt("made.py", "Box.sub", ("total = a + b",)),
        Excerpt("made.py", "other", ("return total",)),
        Excerpt("none.py", "other", ("total = a + b",)),
    ):
        with pytest.raises(LostExcerpt):
            lost.find()


def test_line_numbers_are_written_beside_the_lines(tmp_path, monkeypatch):
    (tmp_path / "made.py").write_text(MADE)
    monkeypatch.setattr("docs.machinery.excerpts.PACKAGE", tmp_path)
    page = "A\n\n```python file=made.py function=Box.add\nreturn total\n```\n\nB"
    numbered = '```python title="src/stablenet/made.py: Box.add" linenums="5"\nreturn total\n```'
    assert number_excerpts(page) == f"A\n\n{numbered}\n\nB"


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_method_has_a_page_with_its_settings_and_departures(name):
    text = describe_method(name)
    kind = ALGORITHMS[name]
    assert text.count("## Departures") == 1
    assert f"Learns from domain labels: {'yes' if kind.uses_domains else 'no'}" in text
    assert ("An approximation" in text) == bool(kind.approximation)
    for field in dataclasses.fields(kind.settings_type):
        assert f"`method.parameters.{field.name}`" in text
    (block,) = [block for block in read_blocks(name, text) if block.language == "bash"]
    check_command(block.commands[0])


def test_a_method_without_departures_says_where_they_are():
    assert "All of it is an approximation" in describe_method("far")
    assert "[Presets](../presets.md)" in describe_method("stablenet").partition("## Departures")[2]
    assert "names none" in describe_method("erm")
    assert "names none" not in describe_method("irm")


def test_a_departure_is_told_in_the_words_of_the_docstring():
    told = describe_method("focal").partition("## Departures")[2]
    assert "Its class weights α" in told.partition("## Settings")[0]


def test_links_between_results_keep_their_sections(tmp_path):
    for name, text in (("one", "[why](../two/README.md#the-reason), [all](../two)"), ("two", "## The reason")):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "README.md").write_text(text)
    file = tmp_path / "results" / "one" / "README.md"
    text, _ = adapt_links(file, "results/one.md", file.read_text(), tmp_path)
    assert text == "[why](two.md#the-reason), [all](two.md)"


def test_links_of_the_checkout_lead_to_the_pages_of_the_site():
    text = (
        "[a](../../results/pacs/README.md#why) [b](../../CHANGELOG.md) [c](../../src/stablenet/algorithms)"
        " [d](../tables.md) [e](../../examples/toy.py) ![f](../pictures/toy.png) [g](https://x.org) [h](#here)"
    )
    told, _ = adapt_links(ROOT / "docs" / "extend" / "split.md", "extend/split.md", text)
    assert told == (
        "[a](../results/pacs.md#why) [b](../changelog.md) [c](../methods/index.md)"
        " [d](../tables.md) e (`../../examples/toy.py`) ![f](../pictures/toy.png) [g](https://x.org) [h](#here)"
    )
    assert find_page(ROOT / "src" / "stablenet" / "algorithms" / "stablenet.py") == "methods/stablenet.md"


WRITTEN = [
    file for place in (".", "docs", "results") for file in (ROOT / place).glob("*.md" if place == "." else "**/*.md")
]


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_in_the_checkout(file):
    links = LINK.findall(FENCE.sub("", file.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert not [name for name in files if not (file.parent / name).exists()]


def test_every_verb_is_described():
    text = make_pages()["reference/command-line.md"]
    for command in app.registered_commands:
        assert f"## stablenet {command.name or command.callback.__name__}\n" in text
    assert "## stablenet bench search" in text
    assert "`--checkpoint-minutes`" in text


def test_presets_and_recipes_are_filled_in():
    text = fill_in("before\n\n<!-- generated: presets -->\n\n<!-- generated: recipes -->")
    for field in dataclasses.fields(WeightingSettings):
        assert f"| `{field.name}` | `{getattr(PRESETS['paper'], field.name)}` |" in text
    assert "| `pacs-classic-photo` |" in text
    with pytest.raises(KeyError):
        fill_in("<!-- generated: nothing -->")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_command_of_a_methods_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in read_blocks(name, describe_method(name)) if block.language == "bash"]
    assert block.commands[0].endswith(MORE.get(name, name))
    code, told = run_stablenet([*block.commands[0].split()[1:], "--device", "cpu", "--set", "train.max_steps=2"])
    assert code == 0, told
