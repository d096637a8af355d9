"""Everything the README and the documentation ask a reader to type is typed here."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from docs.machinery.notebook import NOTEBOOK, TUTORIAL, convert
from PIL import Image

from tests.docs.blocks import FENCE, PAGES, ROOT, name_page, read_blocks, read_cells, read_inline_commands
from tests.docs.commands import UnknownCommand, check_command
from tests.docs.runner import Reader

TEXTS = {name_page(path): path.read_text(encoding="utf-8") for path in PAGES}
RESULTS = {name_page(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / "results").rglob("README.md"))}
# What makes a page quick: its own words on the left. The commands stay as they are but for this.
SHORTER = {
    "README.md": {
        "try my-pictures": "try my-pictures --minutes 0.1 --seeds 2 --device cpu",
        "DEFAULT, 8": "DEFAULT, 1",
        "weights.transforms()": "weights.transforms(resize_size=64, crop_size=64)",
        "weights=weights": "",  # a download
    },
    "docs/tutorial.md": {
        "epochs = 20": "epochs = 1",
        "--seeds 3 --root": "--seeds 1 --device cpu --jobs 1 --root",
        "--seed 0": "--seed 0 --device cpu",
        "runs/* --root": "runs/* --device cpu --root",
        "report verdict.toml": "report verdict.toml --panels 0 --device cpu",
    },
    "docs/presets.md": {"--recipe embedded-dr0.9": "--recipe embedded-dr0.9 --device cpu --set train.max_steps=2"},
    "docs/recipes.md": {
        "--recipe embedded-dr0.9": "--recipe embedded-dr0.9 --device cpu --set train.max_steps=2",
        "epochs = 2": "epochs = 1\nmax_steps = 2",
    },
    "docs/bench.md": {
        "epochs = 10": "epochs = 1",
        "report --runs": "report --panels 0 --device cpu --runs",
        "report mine.toml": "report mine.toml --panels 0",
    },
    "docs/extend/method.md": {
        '"train.epochs=3"': '"train.epochs=1"',
        "epochs = 3": "epochs = 1",
        "--seeds 1": "--seeds 1 --methods hardest",
    },
    "docs/extend/data-set.md": {'"train.epochs=3"': '"train.epochs=1"'},
}
# Thirty epochs four times: nothing but the commands themselves could make it shorter.
SLOW = {"docs/bench.md"}
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
# Run by test_pictures.py, into a folder of its own.
DRAWN = "python docs/make_pictures.py"


def runnable(page):
    marks = [pytest.mark.slow, pytest.mark.timeout(1200)] if page in SLOW else []
    return pytest.param(page, marks=marks, id=page)


@pytest.fixture
def registries():
    """Pages register parts of their own; afterwards the registries and modules are as before."""
    from stablenet.algorithms import ALGORITHMS
    from stablenet.data.sources import SOURCES
    from stablenet.data.splits import SPLITS

    before = [(registry, dict(registry._parts)) for registry in (ALGORITHMS, SPLITS, SOURCES)]
    modules = set(sys.modules)
    yield
    for registry, parts in before:
        registry._parts.clear()
        registry._parts.update(parts)
    for name in [name for name in sys.modules if name.startswith("my_") and name not in modules]:
        del sys.modules[name]


@pytest.mark.parametrize("page", [runnable(page) for page in TEXTS])
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch, registries):
    blocks = [block for block in read_all(page) if not block.text.startswith(DRAWN)]
    if page == "README.md":
        write_pictures(tmp_path / "my-pictures")
    Reader(tmp_path, monkeypatch, SHORTER.get(page, {})).follow(blocks)


def read_all(page):
    """The blocks of a page; the tutorial's are those of its notebook, which is run in its place."""
    if page == "docs/tutorial.md":
        return read_cells(page, NOTEBOOK.read_text(encoding="utf-8"))
    return read_blocks(page, TEXTS[page])


def test_the_notebook_is_the_tutorial():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert text == convert(TUTORIAL.read_text(encoding="utf-8")), "make it: python -m docs.machinery.notebook"
    cells, blocks = read_cells("", text), read_blocks("", TEXTS["docs/tutorial.md"])
    assert [(cell.language, cell.title, cell.text) for cell in cells] == [
        (block.language, block.title, block.text) for block in blocks
    ]
    links = [link for cell in json.loads(text)["cells"] for link in LINK.findall("".join(cell["source"]))]
    assert links
    assert all((NOTEBOOK.parent / link.partition("#")[0]).exists() for link in links)


def write_pictures(folder):
    """Cats on the left, dogs on the right: what a reader of the README has."""
    draw = np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for k in range(60):
            pixels = draw.integers(0, 128, (16, 16, 3))
            pixels[:, 8 * number : 8 * number + 8] += 100
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{k}.png")


@pytest.mark.parametrize("page", TEXTS)
def test_blocks_say_what_they_are(page):
    """A language, so that none is skipped by mistake; a reason only where it is needed."""
    for block in read_blocks(page, TEXTS[page]):
        where = f"{page}, line {block.line}"
        assert block.language in ("python", "bash", "toml", "text"), where
        assert not block.reason or block.language == "bash", where
        assert "not run by the tests" not in block.text or block.reason, f"{where}: the reason goes into the first line"


@pytest.mark.parametrize("page", TEXTS)
def test_no_command_hides_outside_a_block(page):
    plain = FENCE.sub("", TEXTS[page])
    assert not re.findall(r"^(?: {4}|\t)(?:stablenet|make|python|pip) .*", plain, re.MULTILINE)


@pytest.mark.parametrize("page", [*TEXTS, *RESULTS])
def test_every_command_could_be_typed(page):
    """Those behind the results too, which take hours and data."""
    text = TEXTS.get(page) or RESULTS[page]
    commands = [command for block in read_blocks(page, text) if block.language == "bash" for command in block.commands]
    for command in [*commands, *read_inline_commands(text)]:
        check_command(command)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("stablenet trian --seed 0", "no verb 'trian'"),
        ("stablenet train --sed 0", "no option '--sed'"),
        ("stablenet bench run embedded --watch", "no option '--watch'"),
        ("stablenet bench plan embeded", "no table 'embeded'"),
        ("stablenet train --recipe embedded-dr0.42", "no recipe 'embedded-dr0.42'"),
        ("stablenet train --method emr", "no method 'emr'"),
        ("torchrun --nproc-per-node 2 -m stablenet trian", "no verb 'trian'"),
        ("python examples/none.py", "there is no"),
        ("make nothing", "no target"),
        ('pip install ".[nothing]"', "no extra"),
        ("frobnicate", "nothing is known"),
    ],
)
def test_a_command_nobody_could_type_is_found(command, complaint):
    with pytest.raises(UnknownCommand, match=complaint):
        check_command(command)


def test_a_failing_block_fails(tmp_path, monkeypatch):
    def follow(text):
        Reader(tmp_path, monkeypatch, {}).follow(read_blocks("made.md", text))

    file = '```toml title="a.toml"\nx = 1\n```\n'
    follow(file + '```python\nfrom pathlib import Path\nassert Path("a.toml").read_text() == "x = 1\\n"\n```')
    with pytest.raises(NameError):
        follow("```python\nprint(nothing_of_this_name)\n```")
    with pytest.raises(AssertionError, match="line 1: stablenet evaluate nowhere"):
        follow("```bash\nstablenet evaluate nowhere\n```")
    shown = '```bash\nstablenet --version\n```\n```text title="what it prints"\n{} 9.9.9\n```'
    follow(shown.format("stablenet"))
    with pytest.raises(AssertionError, match="it prints stablenet"):
        follow(shown.format("starlnet"))
    with pytest.raises(AssertionError, match="no longer says"):
        Reader(tmp_path, monkeypatch, {"epochs = 30": "epochs = 1"}).follow([])
