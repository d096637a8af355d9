"""A list of many runs: read without torch or pandas, printed without a box, every damage named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stablenet.cli import verbs_lists
from stablenet.engine.ranking import find_best
from stablenet.engine.run import load_run
from stablenet.engine.run_folder import list_lines
from tests.engine.tiny import tiny_run


@pytest.fixture
def run(tmp_path):
    return tiny_run(tmp_path / "runs" / "one", "erm", "train.max_steps=2")


def test_a_line_is_what_the_loaded_run_says(run):
    (line,) = list_lines(run.path.parent, pytest.fail)
    loaded = load_run(run.path)
    assert (line.name, line.method, line.seed) == ("one", "erm", loaded.config.seed)
    assert (line.epochs, line.best) == (loaded.config.train.epochs, find_best(loaded.records))
    assert (line.state, line.done) == (loaded.status["state"], loaded.status["epoch"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda values: values["config"].pop("method"), "lacks the method, the seed or the epochs"),
        (lambda values: values["config"].update(train=3), "lacks the method, the seed or the epochs"),
        (lambda values: values["config"].update(seed="x"), "are of another type"),
        (lambda values: values["hashed"].update(seed=99), "was changed after it was written"),
    ],
)
def test_a_damaged_config_is_named(run, change, told):
    values = json.loads(run.folder.config.read_text())
    change(values)
    run.folder.config.write_text(json.dumps(values))
    found = []
    assert list(list_lines(run.path.parent, lambda path, error: found.append((path, str(error))))) == []
    assert [path for path, _ in found] == [run.path]
    assert told in found[0][1]


def test_many_runs_are_printed_without_a_box(run, monkeypatch, capsys):
    verbs_lists.runs(run.path.parent)
    assert "│" in capsys.readouterr().out
    monkeypatch.setattr(verbs_lists, "_BOXED", 0)
    verbs_lists.runs(run.path.parent)
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "method", "seed", "state", "epochs", "best", "validation"]
    assert line.split()[:4] == ["one", "erm", "0", "finished"]


def test_a_list_imports_neither_torch_nor_pandas():
    """10,000 runs are to be listed in about two seconds; these two take as long to import."""
    code = "import sys, stablenet.engine.run_folder, stablenet.cli.verbs_lists\n"
    code += "print({'torch', 'pandas'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
