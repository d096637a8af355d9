"""Linear heads under weights or offsets, tested on hidden source domains."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("own_methods")


def test_one_smaller_domain_of_every_class_is_hidden():
    from benchmarks.probe import hide

    y = torch.tensor([0] * 9 + [1] * 9)
    domain = torch.tensor([0] * 5 + [1] * 2 + [2] * 2 + [2] * 6 + [0] * 2 + [3])
    seen = set()
    for draw in range(20):
        hidden = hide(y, domain, draw)
        cells = {(int(a), int(b)) for a, b in zip(y[hidden], domain[hidden], strict=True)}
        assert len(cells) == 2
        assert not cells & {(0, 0), (1, 2)}
        assert all(bool(hidden[(y == a) & (domain == b)].all()) for a, b in cells)
        seen |= cells
    assert seen == {(0, 1), (0, 2), (1, 0), (1, 3)}


def test_a_head_is_the_minimum_of_the_weighted_ridge_loss():
    from benchmarks.probe import fit_head

    generator = torch.Generator().manual_seed(0)
    z = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (60,), generator=generator)
    weights = torch.rand(60, generator=generator, dtype=torch.float64)
    offsets = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    matrix, level = (part.requires_grad_() for part in fit_head(z, y, weights, offsets, 0.01))
    logits = z @ matrix + level + offsets
    losses = torch.logsumexp(logits, 1) - logits[torch.arange(60), y]
    ((weights * losses).sum() / 60 + 0.01 * (matrix**2).sum()).backward()
    assert float(matrix.grad.abs().max()) < 1e-5
    assert float(level.grad.abs().max()) < 1e-5


def test_known_domains_help_a_head_that_cannot_fit_everything():
    from benchmarks.probe import Images, hide, probe

    generator = torch.Generator().manual_seed(0)
    y, domain = (part.repeat_interleave(40) for part in torch.cartesian_prod(torch.arange(2), torch.arange(3)).T)
    keep = torch.ones(240, dtype=torch.bool)
    keep[(domain != y) & (torch.arange(240) % 5 > 0)] = False  # class 0 mostly in domain 0, class 1 in domain 1
    y, domain = y[keep], domain[keep]
    style = torch.nn.functional.one_hot(domain, 3).float()
    noise = torch.randn(len(y), 2, generator=generator)
    content = (2.0 * y - 1)[:, None] + 1.5 * noise
    images = Images(torch.cat([content, 3 * style], 1), style, style, y, domain)
    hidden = hide(y, domain, draw=0)
    found = probe(images.choose(~hidden), images.choose(hidden))
    known = next(name for name, _ in found if name.startswith("known"))
    assert found[known, 0.1][0] > found["ones", 0.1][0] + 30
    assert found[known, 1e-5][0] < found["ones", 1e-5][0] + 10
    for name in ("offsets of known domains, √U", "offsets of leading components"):
        assert found[name, 0.1][0] > found["ones", 0.1][0] + 30


@pytest.mark.parametrize(("gains", "told"), [([2.0], "+2.0 (fitted 90.0)"), ([2.0, -6.0], "−2.0 ± 5.7 (fitted 90.0)")])
def test_gains_are_paired_and_a_single_seed_has_no_spread(gains, told, capsys):
    from benchmarks.probe import NONE, RIDGES, show

    plain = [(50.0 + 10 * place, 99.0) for place in range(len(gains))]
    results = [
        {(NONE, ridge): (tested, fitted) for ridge in RIDGES}
        | {("w", ridge): (tested + gain, 90.0) for ridge in RIDGES}
        for (tested, fitted), gain in zip(plain, gains, strict=True)
    ]
    show(results)
    assert capsys.readouterr().out.splitlines()[-1] == "| w |" + f" {told} |" * len(RIDGES)
