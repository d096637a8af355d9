"""Selection rules: what they choose, and what they are shown."""

import pytest

from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, RULES, select_epoch


class Untouchable(list):
    """Target figures that nobody may look at."""

    def __iter__(self):
        raise AssertionError("a rule looked at the target")


def epoch(number, accuracy, loss):
    return {"kind": "epoch", "epoch": number, "validation": {"accuracy": accuracy, "loss": loss}}


def oracle(number, accuracy, loss=1.0):
    return {"kind": "oracle", "epoch": number, "test": {"accuracy": accuracy, "loss": loss}}


RECORDS = [
    {"kind": "start"},
    epoch(1, 0.5, 1.0),
    {"kind": "step", "step": 10},
    epoch(2, 0.9, 0.4),
    epoch(3, 0.9, 0.3),
    epoch(4, 0.9, 0.3),
    epoch(5, 0.7, 0.1),
    {"kind": "end"},
]
ORACLE = [oracle(1, 0.8), oracle(2, 0.1), oracle(3, 0.1), oracle(4, 0.3), oracle(5, 0.2)]


@pytest.mark.parametrize(("rule", "expected"), [("source-validation", 3), ("last", 5), ("oracle", 1)])
def test_each_rule_on_a_case_by_hand(rule, expected):
    # source validation: accuracy 0.9 in epochs 2-4, of which 3 and 4 have the smaller loss, of which 3 is earlier
    assert select_epoch(rule, RECORDS, ORACLE).epoch == expected


def test_only_the_oracle_looks_at_the_target():
    assert [name for name in RULES if RULES[name].looks_at_target] == ["oracle"]
    assert DEFAULT_RULE == "source-validation"
    for rule in ("source-validation", "last"):
        select_epoch(rule, RECORDS, Untouchable(ORACLE))
    with pytest.raises(AssertionError, match="looked at the target"):
        select_epoch("oracle", RECORDS, Untouchable(ORACLE))


def test_target_figures_cannot_move_an_honest_choice():
    smuggled = [*RECORDS, *ORACLE]  # even among the records they are passed over
    assert select_epoch("source-validation", smuggled).epoch == select_epoch("source-validation", RECORDS).epoch


def test_without_validation_the_last_epoch_is_taken():
    records = [{"kind": "epoch", "epoch": number, "validation": None} for number in (1, 2, 3)]
    assert select_epoch("source-validation", records).epoch == 3


def test_what_is_missing_is_said():
    with pytest.raises(UserError, match="has not finished an epoch"):
        select_epoch("last", [{"kind": "start"}])
    with pytest.raises(UserError, match="needs target metrics"):
        select_epoch("oracle", RECORDS)
    with pytest.raises(
        UserError, match="choose from averaged, last, oracle, source-validation, worst-group, worst-pseudo-group"
    ):
        select_epoch("best", RECORDS)


def grouped(number, worst, mean, loss=1.0, contexts=2):
    figures = {"accuracy": 0.9, "loss": loss, "worst_group_accuracy": worst, "groups": {"mean": mean}}
    figures["groups"]["contexts"] = contexts
    return {"kind": "epoch", "epoch": number, "validation": figures}


def test_the_worst_group_decides_then_the_mean_then_the_loss():
    records = [grouped(1, 0.5, 0.9), grouped(2, 0.6, 0.7), grouped(3, 0.6, 0.8), grouped(4, 0.6, 0.8, 0.5)]
    assert select_epoch("worst-group", records, Untouchable(ORACLE)).epoch == 4
    assert select_epoch("worst-group", records[:3]).epoch == 3
    assert select_epoch("source-validation", records).epoch == 4


def test_the_worst_group_needs_contexts_and_says_so():
    assert [name for name in RULES if RULES[name].needs_groups] == ["worst-group"]
    assert "group labels" in RULES["worst-group"].title
    assert "group labels" in RULES["worst-group"].demand
    assert RULES["source-validation"].demand == ""
    for records in (RECORDS, [grouped(1, 0.5, 0.9, contexts=1)], [{"kind": "epoch", "epoch": 1, "validation": None}]):
        with pytest.raises(UserError, match="needs validation images in two or more known contexts"):
            select_epoch("worst-group", records)


def pseudo(number, worst, mean, loss=1.0):
    groups = {"worst": {"accuracy": worst}, "mean": mean}
    return {"kind": "epoch", "epoch": number, "validation": {"accuracy": 0.9, "loss": loss, "pseudo_groups": groups}}


def test_the_worst_pseudo_group_needs_weights_and_no_labels():
    records = [pseudo(1, 0.5, 0.9), pseudo(2, 0.6, 0.7), pseudo(3, 0.6, 0.8), pseudo(4, 0.6, 0.8, 0.5)]
    assert select_epoch("worst-pseudo-group", records, Untouchable(ORACLE)).epoch == 4
    assert select_epoch("worst-pseudo-group", records[:3]).epoch == 3
    assert select_epoch("worst-pseudo-group", [pseudo(1, 0.9, 0.9, float("nan")), pseudo(2, 0.1, 0.1)]).epoch == 2
    assert RULES["worst-pseudo-group"].demand == ""
    for unweighted in (RECORDS, [grouped(1, 0.5, 0.9)]):
        with pytest.raises(UserError, match="needs weights of the validation samples"):
            select_epoch("worst-pseudo-group", unweighted)
