"""Configs, own bench tables and search spaces in TOML, damaged in their text and in their values."""

from __future__ import annotations

from pathlib import Path
from random import Random

from campaign.odd import TOML, draw_value, garble
from campaign.trial import Trial
from campaign.workshop import TABLE, tiny

CONFIG = """label = "mine"
seed = 1
[data]
source = "embedded"
parameters = { train_size = 60, test_size = 20 }
[method]
name = "erm"
[train]
epochs = 1
max_steps = 1
batch_size = 16
milestones = []
"""
SPACE = """[common]
"train.learning_rate" = { low = 0.001, high = 0.1, log = true }
[methods.erm]
"train.weight_decay" = { choices = [0.0, 0.001] }
"""


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    kind = rng.choice(("config", "config", "table", "table", "space"))
    text = {"config": CONFIG, "table": TABLE, "space": SPACE}[kind]
    data = garble(rng, text.encode()) if rng.random() < 0.35 else _change(rng, text).encode(errors="surrogateescape")
    (folder / "mine.toml").write_bytes(data)
    if kind == "config":
        return Trial(words=["train", "--config", "mine.toml", "--device", "cpu", *tiny("train.max_steps=1")])
    if kind == "space":
        (folder / "table.toml").write_text(TABLE)
        words = ["bench", "search", "table.toml", "--space", "mine.toml", "--budget", "0", "--device", "cpu"]
        return Trial(words=words)
    verbs = (["bench", "plan", "mine.toml"], ["bench", "status", "mine.toml"], ["bench", "list", "mine.toml"])
    words = rng.choice((*verbs, ["report", "mine.toml", "--panels", "0"]))
    return Trial(words=[*words, "--device", "cpu"] if words[1] == "plan" else words)


def _change(rng: Random, text: str) -> str:
    """One line with another value, another key, twice, or not at all."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(lines))
        key, equals, _ = lines[place].partition(" = ")
        roll = rng.random()
        if equals and roll < 0.6:
            lines[place] = f"{key} = {draw_value(rng) if roll < 0.3 else rng.choice(TOML)}"
        elif roll < 0.75:
            lines.insert(place, lines[place])
        elif roll < 0.9:
            del lines[place]
        else:
            lines.insert(place, f"{rng.choice(('extra', 'id', 'title', 'recipe', 'imports'))} = {rng.choice(TOML)}")
    return "\n".join(lines)
