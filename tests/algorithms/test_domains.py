"""What methods that learn from domain labels share: who they are, what they refuse, how they number domains."""

import pytest
import torch
from typer.testing import CliRunner

from stablenet.algorithms import ALGORITHMS, ERM, MARKS, Context, build_algorithm, explain_marks
from stablenet.algorithms.erm import ERMSettings
from stablenet.bench.paper_tables import Row
from stablenet.cli.verbs import app
from stablenet.errors import UserError
from stablenet.models import build_network
from tests.algorithms.cases import METHODS

NEEDY = [name for name in ALGORITHMS if ALGORITHMS[name].uses_domains or ALGORITHMS[name].uses_groups]


def make_context(domains, **changes):
    values = {"num_classes": 3, "num_domains": 6, "num_samples": 9, "epochs": 1, "seed": 0, **changes}
    return Context(**values, training_domains=domains)


@pytest.mark.parametrize("method", NEEDY)
@pytest.mark.parametrize("domains", [(), (4,)])
def test_fewer_than_two_domains_are_refused(method, domains):
    network = build_network("resnet18", 3)
    with pytest.raises(UserError, match=f"{method} learns from domain labels.* come from {len(domains)} domain"):
        build_algorithm(method, METHODS[method][1], network, make_context(domains))


def test_the_list_marks_them():
    output = CliRunner().invoke(app, ["list", "methods"]).output
    for sign, meaning in MARKS.items():
        assert f"{sign} {meaning}" in " ".join(output.split())
    for name in ALGORITHMS:
        kind = ALGORITHMS[name]
        shown = "*" * kind.uses_domains + "‡" * kind.uses_groups + "§" * kind.selects_by_groups
        assert f" {name}{shown} " in output, name


def test_groups_as_a_setting_make_an_oracle():
    assert ALGORITHMS["group-dro"].marks({}) == "*"
    assert ALGORITHMS["group-dro"].marks({"groups": "class-domain"}) == "‡§"
    row = Row(id="dro", method="group-dro", parameters={"groups": "class-domain"})
    assert row.marks == "‡§"
    assert "oracle" in explain_marks(row.marks)
    assert explain_marks("") == ""


def test_domains_are_numbered_among_those_of_training():
    method = ERM(build_network("paper-cnn", 3), ERMSettings(), make_context((1, 2, 5)))
    domain = torch.tensor([5, 1, 0, 5, 2, 4])
    assert method.place_domains(domain).tolist() == [2, 0, -1, 2, 1, -1]
    assert not [name for name in method.state_dict() if "place" in name]  # the split knows it


def test_rows_are_split_by_domain():
    method = ERM(build_network("paper-cnn", 3), ERMSettings(), make_context((1, 2, 5)))
    rows = method.split_rows(torch.tensor([5, 1, 5, 1, 1]))
    assert [row.tolist() for row in rows] == [[1, 3, 4], [], [0, 2]]
