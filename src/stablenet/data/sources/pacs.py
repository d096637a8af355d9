"""PACS: seven classes in four styles; folders, the original split lists, or a zip archive."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from stablenet.data.image_list import ImageList, make_image_table
from stablenet.data.sources.folder import Level, Tree, find_tree, fold, match_names, refuse_empty
from stablenet.data.sources.folder import find_differences as compare_layout
from stablenet.data.sources.source import Download, Source, compare_counts
from stablenet.errors import UserError

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
COUNTS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
_SPELLINGS = {"art_painting": ("art", "artpaint"), "cartoon": (), "photo": (), "sketch": ()}
_LAYOUTS = (
    "<domain>/<class>/<image>, also below PACS/ or kfold/",
    "the same with the original lists <domain>_train_kfold.txt and <domain>_crossval_kfold.txt below",
    "a zip archive of either",
)


def read(root: Path) -> ImageList:
    """Read PACS. An id is domain/class/name without the suffix, and does not depend on the encoding."""
    known = {fold(domain) for domain in DOMAINS}
    tree = find_tree(root, "pacs", lambda _, names: len(known & names) >= 2, _LAYOUTS[0])
    tops = {file.split("/")[0] for file in tree.images if file.count("/") == 2}
    domains = match_names("domains", sorted(tops), _SPELLINGS, tree.root)
    records = []
    for folder, domain in domains.items():
        records += _read_domain(tree, folder, domain)
    subsets = _read_lists(tree)
    if subsets:
        records = [record | {"subset": _subset(subsets, str(record["id"]), tree.root)} for record in records]
    found = {d: sum(r["domain"] == k for r in records) for k, d in enumerate(DOMAINS)}
    notes = compare_counts("pacs", found, COUNTS)
    return make_image_table("pacs", tree.root, CLASSES, DOMAINS, records, notes)


def _read_domain(tree: Tree, folder: str, domain: str) -> list[dict[str, object]]:
    files = [file for file in tree.images if file.startswith(f"{folder}/") and file.count("/") == 2]
    subfolders = [name.split("/")[1] for name in tree.folders if name.startswith(f"{folder}/")]
    classes = match_names("classes", sorted(set(subfolders)), dict.fromkeys(CLASSES, ()), tree.root / folder)
    full = {file.split("/")[1] for file in files}
    refuse_empty((f"{folder}/{name}" for name in classes if name not in full), tree.root)
    return [
        {
            "id": f"{domain}/{classes[file.split('/')[1]]}/{PurePosixPath(file).stem}",
            "path": tree.prefix + file,
            "label": CLASSES.index(classes[file.split("/")[1]]),
            "domain": DOMAINS.index(domain),
        }
        for file in files
    ]


def _read_lists(tree: Tree) -> dict[str, str]:
    """Image id -> "train" or "crossval", from the lists that come with PACS (path, then class from 1)."""
    subsets: dict[str, str] = {}
    for file in tree.files:
        name = PurePosixPath(file).name
        for subset in ("train", "crossval"):
            if name.endswith(f"_{subset}_kfold.txt"):
                for line in filter(str.strip, tree.read_text(file).splitlines()):
                    path = line.split()[0]
                    subsets["/".join(PurePosixPath(path).with_suffix("").parts[-3:])] = subset
    return subsets


def _subset(subsets: dict[str, str], image: str, place: Path) -> str:
    if image not in subsets:
        raise UserError(
            f"the split lists in {place} do not contain {image}: they must cover all four domains, or be deleted"
        )
    return subsets[image]


def find_differences(root: Path) -> tuple[str, ...]:
    """All differences to the layout, see `folder`."""
    classes = Level("classes", dict.fromkeys(CLASSES, ()))
    top = Level("domains", _SPELLINGS, lambda name, found: classes, others_allowed=True)  # lists may lie there
    return compare_layout("pacs", root, top, _LAYOUTS[0])


SOURCE = Source(
    name="pacs",
    title="PACS: photo, art painting, cartoon, sketch; 7 classes",
    origin="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
    licence="not stated by its authors; for research",
    layouts=_LAYOUTS,
    read=read,
    counts=COUNTS,
    differences=find_differences,
    downloads=(
        Download(
            url="https://github.com/MachineLearning2020/Homework3-PACS/archive/refs/heads/master.zip",
            file="pacs.zip",
        ),
    ),
    by_hand="download PACS.zip from the authors' page, https://sketchx.eecs.qmul.ac.uk/downloads",
)
