"""DatasetCriterion with held-out samples: which epoch is best, what is halved, what it says of itself."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from stablenet import UserError
from stablenet.integrations import DatasetCriterion

COUNT = 300
UNTIED = torch.arange(COUNT) // 2 % 2  # contexts that say nothing of the label


def make_samples(seed):
    """Two classes; nine in ten of a class have its colour, and a bar always tells."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(COUNT) % 2
    colour = torch.where(torch.rand(COUNT, generator=g) < 0.9, y, 1 - y)
    x = 0.1 * torch.rand(COUNT, 3, 8, 8, generator=g)
    x[torch.arange(COUNT), colour] += 0.4
    x[torch.arange(COUNT), :, 2 + 2 * y] += 0.4
    return TensorDataset(x, y), colour


class Answers(nn.Module):
    """Says of every image what it was told to; its first layer is read."""

    def __init__(self, answers):
        super().__init__()
        self.first, self.answers, self.place = nn.Conv2d(3, 4, 1), answers, 0

    def forward(self, x):
        self.first(x)
        chosen = self.answers[torch.arange(self.place, self.place + len(x)) % COUNT]
        self.place += len(x)
        return 5.0 * nn.functional.one_hot(chosen, 2).float()


@pytest.fixture
def samples():
    return make_samples(0)[0]


@pytest.fixture
def held_out():
    return make_samples(1)


def make_criterion(samples, held_out, **options):
    torch.manual_seed(0)
    options = {"act": "always", **options}
    return DatasetCriterion(
        Answers(samples.tensors[1]), ["first"], samples, num_classes=2, epochs=6, held_out=held_out, **options
    )


def test_a_network_that_uses_the_colour_ranks_below_one_that_does_not(samples, held_out):
    held, colour = held_out
    y = held.tensors[1]
    criterion = make_criterion(samples, held)
    by_colour = criterion.judge(Answers(colour))
    assert by_colour.is_best  # so far
    assert by_colour.accuracy == pytest.approx(0.9, abs=0.05)
    assert by_colour.weighted_accuracy < by_colour.accuracy - 0.1
    assert by_colour.note == "the network predicts with the context"
    wrong = torch.arange(COUNT) % 7 == 0
    by_shape = criterion.judge(Answers(torch.where(wrong, 1 - y, y)))
    assert by_shape.is_best
    assert by_shape.accuracy < by_colour.accuracy
    assert not criterion.judge(Answers(colour)).is_best


def test_a_network_against_the_colour_halves_the_offsets(samples, held_out):
    held, colour = held_out
    criterion = make_criterion(samples, held)
    before = criterion.offsets(torch.arange(COUNT))
    found = criterion.judge(Answers(1 - colour))
    assert "against the context, 0.5 of the offsets left" in found.note
    torch.testing.assert_close(criterion.offsets(torch.arange(COUNT)), before / 2)


def test_where_nothing_is_done_figures_are_plain(samples, held_out):
    held, colour = held_out
    criterion = make_criterion(samples, held, act="auto", contexts=UNTIED)
    found = criterion.judge(Answers(colour))
    assert found.weighted_accuracy is None
    assert str(found) == f"epoch 1: {100 * found.accuracy:.1f} % of the held-out samples, the best so far"


def test_the_best_so_far_survives_a_checkpoint(samples, held_out):
    held, colour = held_out
    criterion, again = make_criterion(samples, held), make_criterion(samples, held)
    criterion.judge(Answers(held.tensors[1]))
    again.load_state_dict(criterion.state_dict())
    assert not again.judge(Answers(colour)).is_best
    torch.testing.assert_close(again.held_out.weights, criterion.held_out.weights)


def test_judging_needs_samples(samples):
    with pytest.raises(UserError, match="held_out"):
        make_criterion(samples, None).judge(nn.Identity())


def test_it_says_what_it_found_and_does(samples, held_out):
    told = repr(make_criterion(samples, held_out[0]))
    assert "300 samples of 2 classes, features of first" in told
    assert "acts: without asking whether it helps" in told
    assert "offsets × 0.5 on the logits" in told
    assert "weights: grow over 1.0 epochs" in told
    assert "300 held-out samples choose the epoch" in told
    pretrained = repr(make_criterion(samples, None, act="auto", pretrained=True))
    assert "acts: colours and textures at the border predict" in pretrained
    assert "weights: even" in pretrained
    plain = repr(make_criterion(samples, None, act="auto", contexts=UNTIED))
    assert "trains plainly: the named contexts predict 0 % of the label's entropy" in plain
    assert "offsets" not in plain


class Terminal(StringIO):
    def isatty(self):
        return True


def test_reading_shows_how_far_it_is_on_a_terminal_only(samples, held_out, monkeypatch, capsys):
    make_criterion(samples, held_out[0])
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    make_criterion(samples, held_out[0])
    shown = terminal.getvalue()
    assert "\rreading features: 128 of 300 training samples" in shown
    assert "300 of 300 held-out samples\n" in shown
    before = terminal.tell()
    make_criterion(samples, held_out[0], progress=False)
    assert terminal.tell() == before
