"""What SECURITY.md says: files of strangers execute nothing, archives stay inside, nobody listens outside."""

from __future__ import annotations

import ast
import json
import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import stablenet
from stablenet.cli.verbs import app
from stablenet.data import decode
from stablenet.data.decode import read_bytes
from stablenet.data.sources.source import Download, fetch_file
from stablenet.errors import UserError
from stablenet.registry import asking_for_trust, import_own, trust_module
from stablenet.report import serve
from stablenet.tabular import StableClassifier, StableRegressor
from stablenet.tabular.estimators import check_saving, load_model, save_model

ROOT = Path(stablenet.__file__).parent
EVIL = "from pathlib import Path\nPath('executed').touch()\n"
TABLE = """
imports = ["evil"]
[[column]]
id = "one"
recipe = "embedded-dr0.9"
[[row]]
id = "erm"
method = "erm"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with a module that shows whether it was executed."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("STABLENET_TRUST", raising=False)
    yield tmp_path
    sys.modules.pop("evil", None)


def run(*words: str) -> str:
    """The message of a refusal, "" where there is none."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))
    if isinstance(result.exception, UserError):
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return ""


def test_a_table_executes_nothing_that_is_not_trusted(here):
    (here / "mine.toml").write_text(TABLE)
    for verb in (["plan"], ["list"], ["status"], ["run"]):
        assert "stablenet --trust" in run("bench", *verb, "mine.toml")
    assert not (here / "executed").exists()
    assert run("--trust", "bench", "list", "mine.toml") == ""
    assert (here / "executed").exists()


def test_a_config_executes_nothing_that_is_not_trusted(here):
    (here / "mine.toml").write_text('[model]\nname = "evil:Net"\n')
    assert "stablenet --trust" in run("train", "--config", "mine.toml")
    assert not (here / "executed").exists()
    assert not (here / "runs").exists()


def test_what_the_user_has_typed_is_trusted(here):
    assert "Net" in run("train", "--set", "model.name=evil:Net")  # which the module lacks
    assert (here / "executed").exists()


def test_trust_is_asked_for_while_the_command_runs(here):
    with asking_for_trust(False):
        with pytest.raises(UserError, match="which executes it"):
            import_own("evil", [here])
        trust_module("evil")
        import_own("evil", [here])
    del sys.modules["evil"]
    with asking_for_trust(True):
        import_own("evil", [here])
    del sys.modules["evil"]
    import_own("evil", [here])  # from Python, whoever calls decides


def test_nothing_in_the_package_loads_a_pickle():
    """joblib.dump stands in one place, where a pickle is asked for; there is no load."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                if text in ("pickle.load", "pickle.loads", "joblib.load", "joblib.dump", "eval", "exec"):
                    found.append((path.name, text))
                if text == "torch.load":
                    assert "weights_only=True" in ast.unparse(node)  # which builds tensors alone
                if text.endswith("np.load"):
                    assert "allow_pickle=True" not in ast.unparse(node)
    assert found == [("estimators.py", "joblib.dump")]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_model_that_is_a_pickle_is_refused(here):
    from stablenet.engine.checkpoint import load_tensors

    for name in ("m.safetensors", "m.json"):
        (here / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="is damaged"):
        load_tensors(here / "m.safetensors")
    with pytest.raises(UserError, match=r"UTF-8|JSON"):
        load_model(here / "m.json")
    assert not (here / "executed").exists()


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    numbers = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    return numbers.assign(town=rng.choice(["Ulm", "Köln"], 60), same=1.0, yes=rng.random(60) > 0.5)


@pytest.mark.parametrize("kind", [StableClassifier, StableRegressor])
def test_a_model_of_plain_numbers_predicts_as_the_one_that_was_saved(frame, kind, tmp_path):
    target = np.where(frame["a"] > 0, "high", "low") if kind is StableClassifier else frame["a"] + 0.1
    model = kind(max_evaluations=5).fit(frame, target)
    save_model(model, tmp_path / "m.json")
    loaded = load_model(tmp_path / "m.json")
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    np.testing.assert_allclose(loaded.weights_, model.weights_)
    if kind is StableClassifier:
        np.testing.assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    values = json.loads((tmp_path / "m.json").read_text())
    del values["mean"]
    (tmp_path / "m.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="damaged"):
        load_model(tmp_path / "m.json")


def test_a_pickle_is_written_only_if_its_ending_asks_for_one():
    check_saving(Path("m.json"), "linear")
    check_saving(Path("m.joblib"), "forest")
    with pytest.raises(UserError, match="plain numbers"):
        check_saving(Path("m.json"), "forest")
    with pytest.raises(UserError, match=r"saved as \.json"):
        check_saving(Path("m.pkl"), "linear")


@pytest.mark.parametrize("member", ["../out.png", "/out.png", "a/../../out.png"])
def test_an_archive_stays_inside(tmp_path, member):
    from stablenet.data.sources import read_source

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("east/cat/0.png", member):
            archive.writestr(name, b"x")
    with pytest.raises(UserError, match=r"a\.zip"):
        read_source("folder", tmp_path / "a.zip")


def test_a_member_may_not_unpack_to_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "LARGEST_IMAGE", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", bytes(1001))
        archive.writestr("fine.png", bytes(1000))
    (tmp_path / "bomb.png").write_bytes(bytes(1001))
    for root in (tmp_path / "a.zip", tmp_path):
        with pytest.raises(UserError, match="more than an image file may have"):
            read_bytes(root, "bomb.png")
    assert len(read_bytes(tmp_path / "a.zip", "fine.png")) == 1000


def test_the_report_is_served_on_the_loopback_alone():
    assert serve.HOST == "127.0.0.1"


def test_a_download_with_another_content_is_not_kept(tmp_path):
    (tmp_path / "there.zip").write_bytes(b"other")
    wanted = Download(url=(tmp_path / "there.zip").as_uri(), file="here.zip", md5="0" * 32)
    with pytest.raises(UserError, match="MD5"):
        fetch_file(wanted, tmp_path / "data", lambda *told: None)
    assert not list((tmp_path / "data").iterdir())


def test_the_document_names_what_is_tested_here():
    text = (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    for word in ("--trust", "127.0.0.1", "load_model", "256 MiB", "MD5"):
        assert word in text
    assert decode.LARGEST_IMAGE == 256 << 20
