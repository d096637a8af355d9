"""Exporting a run: the files, the proof and the card."""

import json
import re

import pytest
import torch

from stablenet.errors import UserError
from stablenet.evaluation.evaluate import evaluate_run
from stablenet.export import FORMATS, PackagedModel, export_run, load_model
from stablenet.export.export_run import Safetensors, compare_outputs, escape_markdown, make_probes, write_code
from tests.made_run import random_network


def test_the_rules_model_is_exported_and_proved(run):
    exported = export_run(run)
    assert exported.file == run.path / "export" / "model.safetensors"
    assert exported.difference == 0
    state = load_model(exported.file).network.state_dict()
    for name, tensor in random_network(0).state_dict().items():  # seed 0 made the best, seed 1 the last
        assert torch.equal(state[name], tensor)
    last = export_run(run, output=run.path / "other", rule="last")
    assert not torch.equal(load_model(last.file).network.head.weight, state["head.weight"])


def test_a_wrong_file_is_caught(run, monkeypatch):
    class Broken(Safetensors):
        def run(self, path, images):
            return super().run(path, images) + 0.1

    monkeypatch.setattr(FORMATS, "_parts", {"safetensors": Broken()})
    with pytest.raises(RuntimeError, match=r"differ by 0\.1"):
        export_run(run)


def test_not_a_number_is_no_agreement(run):
    model = PackagedModel(run.model, load_model(export_run(run).file).settings).eval()
    with pytest.raises(RuntimeError, match="differ by nan"):
        compare_outputs(model, torch.full((len(make_probes(model)), 10), torch.nan))


def test_the_card_tells_classes_input_choice_and_figures(run):
    text = export_run(run).card.read_text()
    assert "| 9 | 9 |" in text
    assert "(batch, 3, 28, 28)" in text
    assert "epoch 2 was chosen by the rule `source-validation`" in text
    assert "The target was not evaluated" in text
    assert "model.onnx" not in text
    assert "CC BY 4.0" in text
    (evaluation,) = evaluate_run(run, device="cpu")
    text = export_run(run, "torch").card.read_text()
    assert f"| test | 60 | {100 * evaluation.figures['accuracy']:.1f} %" in text
    assert "The target was not evaluated" not in text
    assert "`model.safetensors`" in text
    assert "`model.pt2`" in text


def test_the_card_tells_what_was_decided(run):
    assert "Before training" not in export_run(run).card.read_text()
    lines = run.folder.records.read_text().splitlines()
    for acts, told in ((0.0, "so it trained plainly."), (1.0, "so it acts on it.")):
        solve = {"kind": "solve", "epoch": 1, "acts": acts, "decision": "the border predicts <10 %"}
        run.folder.records.write_text("\n".join([lines[0], json.dumps(solve), *lines[1:], ""]))
        text = export_run(run).card.read_text()
        assert f"the method decided that the border predicts &lt;10 %; {told}" in text


def test_a_card_tells_no_figures_of_another_rules_model(run):
    evaluate_run(run, rule="last", device="cpu")
    assert "The target was not evaluated" in export_run(run).card.read_text()


def test_a_card_never_tells_the_oracles_figures(run):
    run.folder.oracle.write_text('{"kind": "oracle", "epoch": 3, "test": {"accuracy": 0.9, "loss": 1}}\n')
    evaluate_run(run, rule="oracle", device="cpu")
    text = export_run(run, rule="oracle").card.read_text()
    assert "do not estimate its performance on new data" in text
    assert "| test |" not in text


def test_an_unfinished_run_and_a_bad_place_are_refused(run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to"):
        export_run(run, output=tmp_path / "file" / "x")
    run.folder.set_status("failed", 1, 3)
    with pytest.raises(UserError, match="is failed, not finished"):
        export_run(run)


def test_names_in_a_card_are_only_text():
    """Hostile class and domain names: no link, no HTML, no further row of a table, no end of a code span."""
    from html import unescape

    hostile = "a|b\n| 7 | <script>alert(1)</script> [x](http://y) **bold** `code` #1 _u_"
    text = escape_markdown(hostile)
    assert "\n" not in text
    assert "<" not in text
    assert unescape(re.sub(r"\\(.)", r"\1", text)) == hostile.replace("\n", " ")  # what a reader sees
    assert re.search(r"(?<!\\)[|`*\[\]_#]", text.replace("&", "")) is None
    code = write_code("a `b` ``c`` | d\ne")
    assert code == "```a `b` ``c`` \\| d e```"
    assert escape_markdown(code) == code
    assert write_code("`") == "`` ` ``"
    assert (escape_markdown(3), write_code("")) == (3, "")
