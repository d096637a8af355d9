import pytest

from stablenet.weighting import context_use


@pytest.mark.parametrize(
    ("plain", "weighted", "effective", "expected"),
    [
        (0.6, 0.4, 100, 4.0),  # a standard error is 0.05
        (0.4, 0.6, 100, -4.0),
        (0.6, 0.4, 25, 2.0),
        (0.7, 0.7, 100, 0.0),
        (1.0, 1.0, 50, 0.0),  # no variance, and nothing to tell
        (1.0, 0.0, 1, 1.0),  # one sample tells nothing
    ],
)
def test_use_of_the_context_in_standard_errors(plain, weighted, effective, expected):
    assert context_use(plain, weighted, effective) == pytest.approx(expected)
