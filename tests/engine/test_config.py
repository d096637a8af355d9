"""Configs: assembled from recipe, file and settings; hashed by what they mean; refused with a reason."""

import pytest

from stablenet.data.manifest import Manifest
from stablenet.data.sources import SOURCES, read_source
from stablenet.data.splits import SPLITS, split_images
from stablenet.engine.config import assemble_config, compare, list_recipes, merge, parse_setting, read_config
from stablenet.engine.identity import Contents, identify
from stablenet.engine.run import describe_config
from stablenet.engine.run_data import open_data
from stablenet.errors import UserError
from tests.engine.tiny import tiny_config


def test_later_words_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('recipe = "embedded-dr0.9"\n[train]\nepochs = 7\nbatch_size = 32\n[method]\nname = "stablenet"\n')
    config = assemble_config(None, file, ["train.epochs=9", "data.parameters.train_size=100"])
    assert (config.train.epochs, config.train.batch_size, config.train.learning_rate) == (9, 32, 0.02)
    assert config.data.parameters == {"ratio": 0.9, "train_size": 100}
    assert config.name == "embedded-dr0.9-stablenet-seed0"
    assert assemble_config("embedded-dr0.5", file).label == "embedded-dr0.5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=3", 3),
        ("a.b=3.5", 3.5),
        ("a.b=true", True),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b=word", "word"),
        ("a.b=5:1:1", "5:1:1"),
        ("a.b='3'", "3"),
        ("a.b=", ""),
    ],
)
def test_settings_are_toml_or_text(text, value):
    assert parse_setting(text) == {"a": {"b": value}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=3", "unknown setting 'train.epoch': did you mean 'epochs'"),
        ("train.epochs=many", "train.epochs must be a whole number, got 'many'"),
        ("train.epochs=3.5", "train.epochs must be a whole number"),
        ("train.epochs=true", "train.epochs must be a whole number, got True"),
        ("train.epochs=0", "train.epochs must be at least 1"),
        ("train.milestones=[2, 1]", "train.milestones must be increasing"),
        ("train.optimizer=sdg", "did you mean 'sgd'"),
        ("train=3", "train must be a table"),
        ("data.std=[1, 1, 0]", r"data.std\[2\] must be positive"),
        ("data.mean=[1]", r"data.mean must be a list of 3, got \[1\]"),
        ("label=a/b", "label must be a plain name"),
        ("train.epochs", "not of the form name=value, such as train.epochs=3"),
    ],
)
def test_mistakes_are_named(setting, message):
    with pytest.raises(UserError, match=message):
        assemble_config(settings=[setting])


@pytest.mark.parametrize(
    "setting", ["\udcff", "\udcff=1", "label=\udcff", 'method.parameters={"\udcff"=1}', "model.name=a:\udcff"]
)
def test_what_is_no_text_is_refused(setting):
    with pytest.raises(UserError, match="is not valid UTF-8") as refused:
        assemble_config(settings=[setting])
    str(refused.value).encode()


def test_values_that_are_no_text_are_refused():
    with pytest.raises(UserError, match=r"model\.name must be text that is valid UTF-8"):
        read_config({"model": {"name": "a:\udcff"}})
    with pytest.raises(UserError, match="must be a table with text keys"):
        read_config({"method": {"parameters": {"\udcff": 1}}})


def test_files_that_are_no_config_are_named(tmp_path):
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(UserError, match="is not TOML"):
        assemble_config(None, tmp_path / "bad.toml")
    with pytest.raises(UserError, match="does not exist: check the path"):
        assemble_config(None, tmp_path / "none.toml")
    (tmp_path / "long.toml").write_text("x." * 50_000 + "y = 1")  # minutes, if it were read
    with pytest.raises(UserError, match="more than 5,000 dots"):
        assemble_config(None, tmp_path / "long.toml")
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbfseed = 3\n")  # as editors on Windows write it
    assert assemble_config(None, tmp_path / "marked.toml").seed == 3
    with pytest.raises(UserError, match=r"did you mean 'embedded-dr0\.9"):
        assemble_config("embeded-dr0.9")


def test_every_recipe_is_a_config_of_known_parts():
    recipes = list_recipes()
    for name in recipes:
        config = assemble_config(name)
        assert config.label == name
        assert config.data.source in list(SOURCES)
        split = SPLITS[config.data.split]
        split.parameters(**config.data.parameters)  # the split accepts them
        assert recipes[name].notes
    assert len({identify(assemble_config(name), Contents()).hash for name in recipes}) == len(recipes)


def test_recipes_hold_the_papers_numbers():
    """From the appendix "Training Details"."""
    pacs, nico, mnist = (
        assemble_config(name) for name in ("pacs-unbalanced-5-sketch", "nico-unbalanced-flexible", "mnistm-dr0.9")
    )
    assert (pacs.train.epochs, pacs.train.learning_rate, pacs.train.milestones) == (30, 0.01, (24,))
    assert (pacs.model.name, pacs.model.pretrained, pacs.train.weight_decay) == ("resnet18", "imagenet", 5e-4)
    assert pacs.data.parameters == {"target": "sketch", "ratio": "5:1:1"}
    assert (nico.train.epochs, nico.train.learning_rate, nico.train.milestones) == (60, 0.02, (30,))
    assert (nico.model.name, nico.model.pretrained) == ("resnet18", "")
    assert (mnist.train.epochs, mnist.train.learning_rate, mnist.train.milestones) == (30, 0.02, (20,))
    assert (mnist.model.name, mnist.train.weight_decay) == ("paper-cnn", 1e-3)
    assert mnist.data.parameters["ratio"] == 0.9


def test_methods_may_differ_in_a_recipe(monkeypatch):
    from stablenet.engine import config
    from stablenet.engine.config import Recipe

    recipe = Recipe("r", "", {"train": {"epochs": 5}}, {"stablenet": {"train": {"epochs": 6, "batch_size": 4}}}, ())
    monkeypatch.setattr(config, "find_recipe", lambda name: recipe)
    assert assemble_config("r").train.epochs == 5
    assert assemble_config("r", None, ["method.name=stablenet"]).train.epochs == 6
    said = assemble_config("r", None, ["method.name=stablenet", "train.epochs=7"])
    assert (said.train.epochs, said.train.batch_size) == (7, 4)


def test_manifest_file_takes_the_place_of_a_split(tmp_path):
    table = read_source("tiny", None)
    made = split_images(table, "adversarial", 3, validation=0.2)
    made.save(tmp_path / "split.tsv")
    config = tiny_config("erm", f"data.manifest={tmp_path / 'split.tsv'}")
    found = open_data(config, None).manifest
    assert isinstance(found, Manifest)
    assert found.hash == made.hash
    assert made.hash in str(describe_config(config, found, None)["hashed"])


def test_split_seed_is_the_runs_unless_given():
    drawn = [
        open_data(tiny_config("erm", *s), None).manifest.seed
        for s in ((), ("seed=2",), ("seed=2", "data.split_seed=0"))
    ]
    assert drawn == [0, 2, 0]


def test_compare_names_what_differs():
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    new = {"a": 1, "b": {"c": 4}, "e": "x"}
    assert compare(old, new) == ["b.c: 2 → 4", "b.d: 3 → (nothing)", 'e: (nothing) → "x"']
    assert merge(old, new) == {"a": 1, "b": {"c": 4, "d": 3}, "e": "x"}


def test_a_value_never_replaces_a_table_nor_a_table_a_value():
    for settings in (
        ["method=1", "method.name=erm"],
        ["train.epochs=3", "train=2"],
        ["data.parameters=x", "data.parameters.a=1"],
    ):
        with pytest.raises(UserError, match="is given as a table and as a single value"):
            assemble_config(None, None, settings)
    assert assemble_config(None, None, ["train.epochs=3", "train.epochs=4"]).train.epochs == 4
