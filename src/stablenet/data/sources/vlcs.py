"""VLCS: five classes in four photo collections, in the DomainBed or the full/train/crossval/test layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from stablenet.data.image_list import ImageList, make_image_table
from stablenet.data.sources.folder import Level, Tree, find_tree, fold, match_names, refuse_empty
from stablenet.data.sources.folder import find_differences as compare_layout
from stablenet.data.sources.source import Source, compare_counts

DOMAINS = ("caltech", "labelme", "pascal", "sun")
CLASSES = ("bird", "car", "chair", "dog", "person")
COUNTS = {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282}
SUBSETS = ("train", "crossval", "test")  # the first two are the 70 % from which the paper draws its splits
_SPELLINGS = {"caltech": ("Caltech101",), "labelme": (), "pascal": ("VOC2007", "VOC"), "sun": ("SUN09",)}
_CLASS_SPELLINGS = {name: (str(number),) for number, name in enumerate(CLASSES)}
_LAYOUTS = (
    "DomainBed: Caltech101|LabelMe|SUN09|VOC2007/<class>/<image>",
    "CALTECH|LABELME|PASCAL|SUN/train|crossval|test/<class 0-4 or name>/<image>",
    "CALTECH|LABELME|PASCAL|SUN/full/<class>/train_*|crossval_*|test_*",
    "a zip archive of any of these",
)


def read(root: Path) -> ImageList:
    """Read VLCS. Ids are paths in the layout found; file names differ between layouts and cannot be matched."""
    known = {fold(name) for own, others in _SPELLINGS.items() for name in (own, *others)}
    tree = find_tree(root, "vlcs", lambda _, names: len(known & names) >= 2, _LAYOUTS[0])
    domains = match_names("domains", sorted({file.split("/")[0] for file in tree.images}), _SPELLINGS, tree.root)
    records = []
    for folder, domain in domains.items():
        records += _read_domain(tree, folder, DOMAINS.index(domain))
    found = {d: sum(r["domain"] == k for r in records) for k, d in enumerate(DOMAINS)}
    notes = compare_counts("vlcs", found, COUNTS)
    if any("subset" in record for record in records):
        records = [{"subset": ""} | record for record in records]
    return make_image_table("vlcs", tree.root, CLASSES, DOMAINS, records, notes)


def _read_domain(tree: Tree, folder: str, domain: int) -> list[dict[str, object]]:
    """Read the three published subsets if present, else `full`, else plain class folders."""
    below = {name.split("/")[1] for name in tree.folders if name.startswith(f"{folder}/")}
    if set(SUBSETS) <= below:
        return [r for s in SUBSETS for r in _read_classes(tree, f"{folder}/{s}", domain, s)]
    if "full" in below:
        return _read_classes(tree, f"{folder}/full", domain, None)
    return _read_classes(tree, folder, domain, "")


def _read_classes(tree: Tree, folder: str, domain: int, subset: str | None) -> list[dict[str, object]]:
    """subset: a published one, None to infer it from the file names, "" if there is none."""
    depth = folder.count("/") + 2
    files = [file for file in tree.images if file.startswith(f"{folder}/") and file.count("/") == depth]
    names = {n.split("/")[-1] for n in tree.folders if n.rpartition("/")[0] == folder}
    classes = match_names("classes", sorted(names), _CLASS_SPELLINGS, tree.root / folder)
    full = {file.split("/")[-2] for file in files}
    refuse_empty((f"{folder}/{name}" for name in classes if name not in full), tree.root)
    records: list[dict[str, object]] = []
    for file in files:
        label = CLASSES.index(classes[file.split("/")[-2]])
        record: dict[str, object] = {"id": file, "path": tree.prefix + file, "label": label, "domain": domain}
        name = PurePosixPath(file).name
        own = next((s for s in SUBSETS if name.startswith(f"{s}_")), "") if subset is None else subset
        records.append(record | {"subset": own} if own else record)
    return records


def find_differences(root: Path) -> tuple[str, ...]:
    """All differences to whichever layout a domain's folder begins, see `folder`."""
    return compare_layout("vlcs", root, Level("domains", _SPELLINGS, _below_domain), _LAYOUTS[0])


def _below_domain(domain: str, found: Sequence[str]) -> Level:
    """Classes, or the published subsets with classes in each, or `full` with them."""
    classes = Level("classes", _CLASS_SPELLINGS)
    subsets = [name for name in found if name in SUBSETS]
    if subsets:
        return Level("subsets", dict.fromkeys(SUBSETS, ()), lambda name, below: classes, others_allowed=True)
    if "full" in found:
        return Level("subsets", {"full": ()}, lambda name, below: classes, others_allowed=True)
    return classes


SOURCE = Source(
    name="vlcs",
    title="VLCS: PASCAL VOC 2007, LabelMe, Caltech-101, SUN09; 5 classes",
    origin="Torralba and Efros, Unbiased Look at Dataset Bias, CVPR 2011",
    licence="that of the four collections; for research",
    layouts=_LAYOUTS,
    read=read,
    counts=COUNTS,
    differences=find_differences,
    by_hand="download VLCS.tar.gz with DomainBed's download script (python -m domainbed.scripts.download), or the "
    "archive with the folders full, train, crossval and test that JiGen's and Epi-FCR's code link to, and unpack it "
    "(tar archives are not read directly)",
)
