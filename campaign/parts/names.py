"""Names nobody expects, of folders, files, classes, columns and runs: brackets, markup, no text at all, or very long.

What is written with them must hold them as they are; no page may hold them as markup.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from campaign.odd import WORDS
from campaign.trial import Ending, Trial
from campaign.workshop import CLASSES, DOMAINS, tiny

MARKUP = "<script>alert(1)<script>"  # without a slash, so that a folder can be called so
HARD = (
    "[/b]", "[red]x", "[[", "]", "[link=a]", ":smile:", "\udcff\udcfe", "a\udc80b", "x" * 255, "é" * 127, "x" * 200,
    "-", "--help", "-rf", " ", "  a", "a ", ".a", "..a", "a.", "a\nb", "a\rb", "a\tb", "\x1b[31m", "\x07", "\x7f",
    "\u202e",
    "\u200b", "\ufeff", "e\u0301", "\u00e9", "ß", "ẞ", "İ", "ſ", "%s", "%00", "{0}", "{{ a }}", "{% a %}", "$(x)",
    "`x`", ";",
    "*", "?", "[a-z]", "~", "con", "nul", "NaN", "None", "true", "1e400", "0", "00", "²", "١", "train", "val",
    "test", "none",
    "a,b", 'a"b', "a'b", "a|b", "a\\b", "#a", "=1+1", "@a", "&amp;", "&lt;", "<!--", MARKUP, "'\"><b>", "|---|",
    "\U0001f9a9",
)  # fmt: skip


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    return rng.choice((_name_photos, _name_photos, _name_columns, _name_runs))(rng, workshop, folder)


def draw_name(rng: Random) -> str:
    """One of the hard ones, one of the odd words, or letters from anywhere."""
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(HARD)
    if roll < 0.7:
        return rng.choice(WORDS)
    letters = (rng.choice((rng.randrange(1, 0x250), rng.randrange(0x2000, 0xFFFE))) for _ in range(rng.randint(1, 30)))
    return "".join(map(chr, letters))


def draw_file_name(rng: Random) -> str:
    """A name that this file system takes."""
    while True:
        name = draw_name(rng).replace("/", "").replace("\0", "")
        try:
            if name not in ("", ".", "..") and len(os.fsencode(name)) <= 255:
                return name
        except UnicodeEncodeError:  # half of a pair of surrogates
            continue


def _name_photos(rng: Random, workshop: Path, folder: Path) -> Trial:
    """domain/class/image, one of the three with an odd name, or the folder of all."""
    shutil.copytree(workshop / "photos", folder / "photos")
    root, place = "photos", folder / "photos"
    for level, known in ((0, DOMAINS), (1, CLASSES)):
        if rng.random() < 0.5:
            for parent in [place] if level == 0 else sorted(place.iterdir()):
                _rename(parent / known[0], draw_file_name(rng))
    if rng.random() < 0.3:
        image = sorted(path for path in place.rglob("*.png"))[0]
        _rename(image, draw_file_name(rng)[:100] + ".png")
    if rng.random() < 0.3:
        root = draw_file_name(rng)
        _rename(place, root)
    training = ["train", "--root", f"./{root}", *tiny("train.max_steps=1"), "--device", "cpu"]
    for setting in ('data.source="folder"', 'data.split="classic"', 'data.parameters={target="west"}'):
        training += ["--set", setting]
    words = rng.choice(
        (
            ["data", "split", "folder", "classic", "--root", f"./{root}", "--target", "west", "--out", "split.tsv"],
            ["data", "prepare", "folder", "--root", f"./{root}", "--store", "store"],
            ["diagnose", f"./{root}", "--output", "page.html"],
            ["predict", str(workshop / "runs" / "plain"), f"./{root}", "--output", "predicted.csv"],
            [
                "saliency",
                str(workshop / "runs" / "plain"),
                "--images",
                f"./{root}",
                "--samples",
                "2",
                "--output",
                "p.html",
            ],
            training,
        )
    )
    return Trial(words=words, check=check_pages)


def _rename(path: Path, name: str) -> None:
    new = path.with_name(name)
    if path.exists() and not new.exists():
        path.rename(new)


def _name_columns(rng: Random, workshop: Path, folder: Path) -> Trial:
    """A table, or a list of images, with odd names of columns and classes."""
    names = [draw_name(rng).replace("\0", "") for _ in range(2)]
    classes = [draw_name(rng).replace("\0", "") for _ in range(2)]
    if rng.random() < 0.6:
        rows = [[f"{rng.gauss(0, 1):.3f}", f"{rng.gauss(0, 1):.3f}", classes[k % 2], f"s{k % 3}"] for k in range(40)]
        _write_rows(folder / "t.csv", [[*names, "y", "site"], *rows])
        words = rng.choice(
            (
                ["table", "fit", "t.csv", "--target", "y", "--page", "page.html", "--save", "m.json"],
                ["table", "fit", "t.csv", "--target", names[0], "--task", "regression", "--page", "page.html"],
                ["diagnose", "t.csv", "--target", "y", "--output", "page.html"],
                ["table", "fit", "t.csv", "--target", "y", "--environment", "site", "--weights", "w.csv"],
            )
        )
        return Trial(words=words, check=check_pages)
    images = sorted((workshop / "photos").rglob("*.png"))
    rows = [[str(path), classes[k % 2], path.parts[-3]] for k, path in enumerate(images)]
    _write_rows(folder / "t.csv", [["path", *names], *rows])
    chosen = ["--label", names[0], "--context", names[1]]
    words = rng.choice(
        (
            ["diagnose", "t.csv", *chosen, "--output", "page.html"],
            [
                "data",
                "split",
                "image-list",
                "classic",
                "--root",
                "t.csv",
                *chosen,
                "--target",
                "west",
                "--out",
                "s.tsv",
            ],
        )
    )
    return Trial(words=words, check=check_pages)


def _write_rows(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        csv.writer(file).writerows(rows)


def _name_runs(rng: Random, workshop: Path, folder: Path) -> Trial:
    """A run folder, a page or a package of an odd name."""
    run, out = draw_file_name(rng), draw_file_name(rng)
    shutil.copytree(workshop / "runs" / "weighted", folder / run)
    (folder / "photos").symlink_to(workshop / "photos")
    verbs: tuple[Callable[[], list[str]], ...] = (
        lambda: ["runs", "."],
        lambda: ["report", "--runs", ".", "--panels", "0", "--output", f"./{out}"],
        lambda: ["weights", f"./{run}", "--csv", f"./{out}", "--output", f"./{out}.png"],
        lambda: ["export", f"./{run}", "--output", f"./{out}"],
        lambda: ["evaluate", f"./{run}"],
        lambda: ["predict", f"./{run}", "photos", "--output", f"./{out}.csv"],
        lambda: ["saliency", f"./{run}", "--samples", "2", "--count", "1", "--output", f"./{out}.html"],
        lambda: ["diagnose", f"./{run}", "--output", f"./{out}.html"],
        lambda: ["train", "--method", "erm", "--folder", f"./{out}", *tiny("train.max_steps=1")],
        lambda: ["train", "--method", "erm", "--runs", f"./{out}", "--set", f"label={run}", *tiny("train.max_steps=1")],
        lambda: ["bench", "status", "--runs", "."],
        lambda: ["paper", "--runs", ".", "--page", f"./{out}.md"],
    )
    return Trial(words=rng.choice(verbs)(), check=check_pages)


def check_pages(ending: Ending) -> str:
    """No page holds a name as markup."""
    for path in ending.folder.rglob("*.html"):
        if path.is_file() and MARKUP in path.read_text(errors="replace"):
            return f"markup in the page {path.name}"
    return ""
