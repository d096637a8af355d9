"""`stablenet evaluate` shows groups with intervals, and what to know of small groups and of rules with group labels."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from stablenet.cli.verbs_models import list_failures, list_groups, tabulate_figures, tabulate_shares
from stablenet.evaluation.evaluate import RULES, Choice, Evaluation
from stablenet.metrics import describe_groups


def evaluation(cells, rule="source-validation"):
    """cells: rows of (right, all) per domain, two classes."""
    table = torch.tensor(cells)
    domains = [f"place{k}" for k in range(len(cells))]
    groups = describe_groups(table[..., 0], table[..., 1], domains, ["cat", "dog"])
    figures = {"accuracy": 0.9, "mean_domain_accuracy": 0.8, "count": 100, "calibration_error": 0.1, "groups": groups}
    run = SimpleNamespace(path=Path("run-1"))  # its folder alone is shown
    return Evaluation(run, Choice(RULES[rule], 3), "test", figures | {"per_class": {"cat": 0.5}}, None)


def show(table):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_groups_are_shown_with_intervals():
    made = evaluation([[(45, 50), (30, 40)], [(2, 5), (50, 50)]])
    told = show(tabulate_shares(made))
    assert "dog on place0" in told
    assert "75.0 %" in told
    assert "59.8 to  85.8 %, of 40" in told, "Wilson's interval of 30 of 40"
    assert "cat on place1" in told
    assert "of 5, few" in told
    assert "worst group  dog on place0" in told, "not the one with 5 images"
    assert "1 of 4 groups have fewer than 10 images," in told
    assert "passed over for the worst group" in told
    assert next(list_groups(made.figures["groups"]))[0] == "cat on place1"


def test_small_groups_alone_are_named_with_caution():
    told = show(tabulate_shares(evaluation([[(1, 2), (3, 3)]])))
    assert "worst group  cat on place0" in told
    assert "2 of 2 groups have fewer than 10 images," in told
    assert "as all groups are: named with caution" in told


@pytest.mark.parametrize("rule", ["source-validation", "worst-group"])
def test_the_rule_says_whether_it_needs_group_labels(rule):
    told = show(tabulate_figures([evaluation([[(45, 50), (30, 40)]], rule)]))
    assert ("needs group labels" in told) == (rule == "worst-group")
    for words in ("75.0 %", "82.5 %", "8.3"):
        assert words in told, "worst group, mean over groups, gap"


def test_a_lost_group_is_said():
    (note,) = list_failures([evaluation([[(45, 50), (0, 40)]])])
    assert note.startswith("run-1, test: the network is wrong for all 40 images of dog on place0: look at")
    assert list(list_failures([evaluation([[(45, 50), (3, 40)]])])) == []
