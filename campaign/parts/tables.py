"""CSV tables with columns of every kind, fitted, diagnosed and used as lists of images."""

from __future__ import annotations

from pathlib import Path
from random import Random

from campaign.odd import WORDS, garble
from campaign.trial import Trial

KINDS = ("normal", "constant", "classes", "words", "mixed", "huge", "tiny", "gaps", "bool", "dates", "infinite", "rows")
PLAIN = tuple(word for word in WORDS if not set(word) & set(',;"\n\t'))
NAMES = ("a", "b", "c", "site", "y", "[/b]", "a b", "", "é", "path", "label", "x" * 200, "1", "weight")


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    rows, names = rng.choice((0, 1, 2, 5, 12, 40, 40, 80)), rng.sample(NAMES, rng.randint(1, 6))
    if rng.random() < 0.1:
        names.append(names[0])
    columns = [_draw_column(rng, rng.choice(KINDS), rows) for _ in names]
    separator = rng.choice((",", ",", ",", ";", "\t"))
    text = "\n".join(separator.join(row) for row in [names, *zip(*columns, strict=True)]) + "\n"
    data = text.encode(errors="surrogateescape")
    (folder / "t.csv").write_bytes(garble(rng, data) if rng.random() < 0.15 else data)
    return Trial(words=_choose_words(rng, names, workshop))


def _choose_words(rng: Random, names: list[str], workshop: Path) -> list[str]:
    target = rng.choice(names)
    if rng.random() < 0.2:
        words = ["diagnose", "t.csv", "--target", target]
        return words + (["--context", rng.choice(names)] if rng.random() < 0.5 else [])
    if rng.random() < 0.08:
        return ["predict", str(workshop / "runs" / "plain"), "t.csv"]
    words = ["table", "fit", "t.csv", "--target", target, "--method", rng.choice(("stable", "stable", "srdo", "crbr"))]
    for option, choices in (
        ("--environment", names),
        ("--task", ("auto", "regression", "classification")),
        ("--estimator", ("linear", "mlp", "forest")),
        ("--leave-out", names),
        ("--categorical", names),
        ("--missing", ("mark", "drop", "error", "fill")),
        ("--weights", ("w.csv", ".", "no/w.csv")),
        ("--save", ("m.model", ".", "no/m.model")),
    ):
        if rng.random() < 0.3:
            words += [option, rng.choice(choices)]
    return words


def _draw_column(rng: Random, kind: str, rows: int) -> list[str]:
    draw = {
        "normal": lambda k: f"{rng.gauss(0, 1):.5f}",
        "constant": lambda k: "7",
        "classes": lambda k: str(rng.randrange(3)),
        "words": lambda k: rng.choice(("cat", "dog", "[b]")),
        "mixed": lambda k: rng.choice(("1", "x", "", "2.5", "nan", "True")),
        "huge": lambda k: rng.choice(("1e300", "-1e300", "1e-300", "1e19", "9" * 25)),
        "tiny": lambda k: f"{rng.gauss(0, 1) * 1e-200}",
        "gaps": lambda k: "" if rng.random() < 0.3 else f"{rng.gauss(0, 1):.3f}",
        "bool": lambda k: rng.choice(("True", "False")),
        "dates": lambda k: f"2026-01-{k % 28 + 1:02d}",
        "infinite": lambda k: rng.choice(("inf", "-inf", "1", "2")),
        "rows": lambda k: rng.choice(PLAIN) if k % 9 == 0 else str(k),
    }[kind]  # fmt: skip
    return [draw(k) for k in range(rows)]
