"""Names of version 0.1: they still work, and one note says how they are called now."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from stablenet.bench.cells import make_run
from stablenet.bench.paper_tables import find_table
from stablenet.cli.verbs import app
from stablenet.data.image_list import make_image_list
from stablenet.data.manifest import Manifest
from stablenet.data.sources import SOURCES, read_source
from stablenet.data.sources.digits import embedded_table
from stablenet.data.splits import split_images, split_table
from stablenet.engine.config import DataConfig, assemble_config, read_config
from stablenet.engine.identity import Contents, identify
from stablenet.registry import note_renamed
from tests.bench.small import TABLE, write_table

TINY = {"ratio": 0.9, "train_size": 100, "test_size": 20}


@pytest.fixture(autouse=True)
def afresh():
    note_renamed.cache_clear()


def test_a_config_may_say_setting(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(
        '[data]\nsource = "pacs"\nsetting = "classic"\nparameters = { target = "photo" }\n'
    )
    old = assemble_config(None, tmp_path / "own.toml", ["data.setting=unbalanced"])
    assert (old.data.split, old.data.setting) == ("unbalanced", "unbalanced")
    assert assemble_config("embedded-dr0.9", None, ["data.setting=flexible"]).data.split == "flexible"
    told = capsys.readouterr().err.splitlines()
    assert told.count("note: data.setting is now called data.split; the old name still works") == 1


def test_stored_configs_are_read_in_silence(capsys):
    plain = read_config({}).plain()
    plain["data"]["setting"] = plain["data"].pop("split")
    assert read_config(plain) == read_config({})
    assert not capsys.readouterr().err


def test_the_hash_of_a_config_has_the_old_name():
    identity = identify(read_config({}), Contents())
    assert identity.hashed["data"]["setting"] == "adversarial"
    assert "split" not in identity.hashed["data"]


def test_a_table_of_results_may_say_setting(tmp_path):
    old = TABLE.replace("[settings.train]", '[settings.data]\nsetting = "correlated"\n[settings.train]')
    table = find_table(str(write_table(tmp_path, old)))
    assert make_run(table, table.rows[0], table.columns[0], 0).config.data.split == "correlated"


def test_keywords_have_their_old_name(capsys):
    assert DataConfig(setting="classic") == DataConfig(split="classic")
    images = read_source("embedded", None)
    assert split_images(images, setting="adversarial", **TINY).hash == split_images(images, "adversarial", **TINY).hash
    made = split_images(images, "adversarial", **TINY)
    assert replace(made, setting="mine").split == "mine"
    assert made.setting == "adversarial"
    assert capsys.readouterr().err == "note: setting is now called split; the old name still works\n"


def test_a_manifest_of_the_first_release_is_read(tmp_path):
    made = split_images(read_source("embedded", None), "adversarial", **TINY)
    made.save(tmp_path / "new.tsv")
    header, rows = (tmp_path / "new.tsv").read_text().split("\n", 1)
    fields = json.loads(header)
    fields["setting"] = fields.pop("split")
    (tmp_path / "old.tsv").write_text(json.dumps(fields) + "\n" + rows)
    assert Manifest.load(tmp_path / "old.tsv").hash == made.hash == Manifest.load(tmp_path / "new.tsv").hash


def test_the_command_takes_old_words():
    old, new = (CliRunner().invoke(app, ["list", word]) for word in ("settings", "splits"))
    assert old.stdout == new.stdout
    assert "adversarial" in new.stdout
    assert "settings is now called splits" in old.stderr
    missing = CliRunner().invoke(app, ["diagnose", "nowhere", "--setting", "classic"])
    assert "--setting is now called --split" in missing.stderr
    assert "--setting" not in CliRunner().invoke(app, ["diagnose", "--help"]).stdout


def test_the_source_of_image_lists_was_called_table(tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text('[data]\nsource = "table"\n')
    assert assemble_config(None, file, []).data.source == "image-list"
    assert (
        capsys.readouterr().err
        == "note: data.source=table is now called data.source=image-list; the old name still works\n"
    )
    stored = read_config({"data": {"source": "table"}})
    assert identify(stored, Contents()).hashed["data"]["source"] == "table"
    assert SOURCES["table"] is SOURCES["image-list"]
    assert capsys.readouterr().err == "note: the data source table is now called image-list; the old name still works\n"
    assert "table" not in SOURCES


def test_a_manifest_of_a_table_has_the_hash_it_had(tmp_path):
    rows = [{"id": f"{k}.png", "path": f"{k}.png", "label": k % 2, "domain": 0} for k in range(20)]
    made = split_images(make_image_list("image-list", tmp_path, "ab", ["all"], rows), "held-out")
    old = replace(made, source="table")
    assert old.hash == made.hash
    old.save(tmp_path / "old.tsv")
    assert '"source":"table"' in (tmp_path / "old.tsv").read_text()
    assert Manifest.load(tmp_path / "old.tsv").source == "image-list"


def test_functions_have_their_old_names(capsys):
    images = embedded_table()
    assert split_table(images, "adversarial", **TINY).hash == split_images(images, "adversarial", **TINY).hash
    assert capsys.readouterr().err.splitlines() == [
        "note: embedded_table is now called read_embedded; the old name still works",
        "note: split_table is now called split_images; the old name still works",
    ]
