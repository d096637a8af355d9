"""Pixel stores and manifests with one file damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from campaign.parts.runs import damage
from campaign.trial import Ending, Trial
from campaign.workshop import tiny


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    (folder / "photos").symlink_to(workshop / "photos")
    if rng.random() < 0.5:
        shutil.copytree(workshop / "store", folder / "store")
        damage(rng, rng.choice(sorted((folder / "store").iterdir())))
        prepare = ["data", "prepare", "folder", "--root", "photos", "--store", "store"]
        words = rng.choice((["data", "check", "store"], ["data", "check", "store", "--root", "photos"], prepare))
        return Trial(words=words, check=_check_store if words[1] == "check" else None)
    shutil.copy(workshop / "split.tsv", folder / "split.tsv")
    before = (folder / "split.tsv").read_bytes()
    damage(rng, folder / "split.tsv")
    train = ["train", "--root", "photos", *tiny("train.max_steps=1", 'data.manifest="split.tsv"')]
    words = rng.choice((["data", "check", "split.tsv"], ["data", "show", "split.tsv", "--root", "photos"], train))
    unchanged = (folder / "split.tsv").is_file() and (folder / "split.tsv").read_bytes() == before
    return Trial(words=words, check=None if unchanged else _check_manifest)


def _check_store(ending: Ending) -> str:
    return ""


def _check_manifest(ending: Ending) -> str:
    """A manifest carries its hash over all but its notes."""
    if ending.status != 0:
        return ""
    text = (ending.folder / "split.tsv").read_text(errors="replace")
    return "" if '"notes"' in text else "a damaged manifest was accepted"
