"""Networks and modules of a user's own that raise, exit or give something else: one sentence, with the line."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from stablenet.cli import last_net
from stablenet.errors import MISTAKE, OUR_MISTAKE, UserError
from stablenet.models import build_network
from stablenet.registry import import_own

IMAGES = torch.zeros(4, 3, 2, 2)


class Gives(nn.Module):
    """The features of a network whose forward does something else with them."""

    num_features = 5

    def __init__(self, give):
        super().__init__()
        self.linear, self.give = nn.Linear(12, 5), give

    def forward(self, images):
        return self.give(self.linear(images.flatten(1)))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Import a text as a module of the user's own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("stablenet.registry.own_folders", set())

    def write(text):
        (tmp_path / "my_own_module.py").write_text(text)
        return import_own("my_own_module", [tmp_path])

    yield write
    sys.modules.pop("my_own_module", None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n1 / 0", r"failed with ZeroDivisionError: division by zero \(my_own_module.py, line 2\)"),
        ("import sys\nsys.exit(3)", "ended the program with the status 3"),
        ("exit()", "ended the program"),
        ("x = (", r"SyntaxError: .*my_own_module.py, line 1"),
        ("open('nowhere')", r"FileNotFoundError: .*line 1"),
        ("def f(): f()\nf()", "RecursionError"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("raise ValueError('[/b]\\n' + 'x' * 9999)", r"ValueError: \[/b\] x+…x+ \(my_own"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_sentence(own, text, told):
    with pytest.raises(UserError, match=told) as refused:
        own(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (lambda features: None, "gave a NoneType"),
        (lambda features: [features], "gave a list"),
        (lambda features: features.long(), "gave torch.int64"),
        (lambda features: features.double(), "gave torch.float64"),
        (lambda features: features.half(), "gave torch.float16"),
        (lambda features: features.to("meta"), "gave torch.float32 on meta, expected .* on cpu"),
        (lambda features: features + 0j, "gave torch.complex64"),
        (lambda features: features[:, :3], r"shape \(4, 3\), expected \(batch, 5\)"),
        (lambda features: features[:3], "gave 3 features for 4 images"),
        (lambda features: features.sum(), r"shape \(\)"),
    ],
)
def test_a_network_that_gives_something_else_is_one_sentence(monkeypatch, give, told):
    monkeypatch.setitem(globals(), "make", lambda: Gives(give))
    with pytest.raises(UserError, match=told):
        build_network(f"{__name__}:make", 2)(IMAGES)


class Untensored(Gives):
    def get_extra_state(self):
        return 3

    def set_extra_state(self, state):
        pass


def wide(width):
    network = Gives(None)
    network.num_features = width
    return network


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: 1 / 0, "failed with ZeroDivisionError"),
        (sys.exit, "ended the program"),
        (lambda needed: None, "missing 1 required"),
        (lambda: "net", "gave a str"),
        (lambda: wide(0), "must be positive, got 0"),
        (lambda: wide(-1), "must be positive"),
        (lambda: Gives(None).double(), "linear.weight of the backbone .* is torch.float64"),
        (lambda: Gives(None).to("meta"), "linear.weight of the backbone .* has no values"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "has no values yet"),
        (lambda: nn.Linear(12, 3), "single nn.Linear"),
        (lambda: Untensored(None), "only tensors are saved"),
    ],
)
def test_a_network_that_cannot_be_built_is_one_sentence(monkeypatch, make, told):
    monkeypatch.setitem(globals(), "make", make)
    with pytest.raises(UserError, match=told):
        build_network(f"{__name__}:make", 2)


def test_an_error_of_own_code_is_not_one_of_ours(own, tmp_path, monkeypatch):
    """Wherever it is raised: the sentence names the line, and a report holds the traceback."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = own("def fail(value):\n    return {}[value]")
    for call, status in ((lambda: module.fail("missing"), MISTAKE), (lambda: {}["ours"], OUR_MISTAKE)):
        with pytest.raises(KeyError) as raised:
            call()
        told, ended = last_net.explain(raised.value)
        assert ended == status
        assert ("my_own_module.py, line 2" in told) == (status == MISTAKE)
        assert "stablenet-error-" in told
