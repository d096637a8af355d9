"""Who imports whom in the package; and modules of the user's own, beside a table or where the command is called."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import stablenet
from stablenet.algorithms import ALGORITHMS
from stablenet.errors import UserError
from stablenet.registry import import_own, search_folders

METHOD = """
from stablenet.algorithms import ALGORITHMS, ERM


class Mine(ERM):
    pass


ALGORITHMS.add("mine", Mine)
"""
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, image_size=28):
        super().__init__()
        self.num_features = 4
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images):
        return self.body(images)
"""
SETTINGS = {"data.parameters.train_size": 100, "data.parameters.test_size": 20, "train.max_steps": 1}
TABLE = """
imports = ["beside", "package.here"]
[settings]
data.parameters = { train_size = 100, test_size = 20 }
train = { epochs = 1, max_steps = 1, milestones = [], batch_size = 20 }
model = { name = "beside_net:Net" }
[[column]]
id = "one"
recipe = "embedded-dr0.9"
[[row]]
id = "mine"
method = "mine"
"""


@pytest.fixture
def search(monkeypatch):
    """What a test adds to the search and imports is forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def run_script(folder: Path, *words: str, code: int = 0) -> str:
    """The installed command, with nothing on its path but what it puts there itself."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "STABLENET_DATA")}
    script = Path(sys.executable).parent / "stablenet"
    environment |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1", "STABLENET_CACHE": str(folder / ".cache")}
    done = subprocess.run([script, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("where", [(), pytest.param(("--ray-address", "local"), marks=pytest.mark.slow)])
def test_a_table_finds_modules_beside_it_and_in_the_current_folder(tmp_path, where):
    tables, here = tmp_path / "tables", tmp_path / "here"
    (here / "package").mkdir(parents=True)
    tables.mkdir()
    (tables / "beside.py").write_text(METHOD)
    (tables / "beside_net.py").write_text(NET)
    (here / "package" / "here.py").write_text("SEEN = True")
    (tables / "mine.toml").write_text(TABLE)
    told = run_script(here, "--trust", "bench", "run", "../tables/mine.toml", "--seeds", "1", "--device", "cpu", *where)
    assert "finished" in told
    assert len(list(here.glob("runs/*/evaluation.jsonl"))) == 1


def test_a_module_that_is_nowhere_is_named_once(tmp_path):
    (tmp_path / "mine.toml").write_text(TABLE.replace("package.here", "packet"))
    (tmp_path / "beside.py").write_text(METHOD)
    (tmp_path / "here").mkdir()
    told = run_script(tmp_path / "here", "--trust", "bench", "plan", "../mine.toml", code=2)
    assert told.count("\n") == 1
    assert "the table ../mine.toml: no module 'packet' in" in told
    assert f"{tmp_path / 'here'} or among the installed packages" in told


def test_train_finds_a_network_in_the_current_folder(tmp_path):
    (tmp_path / "my_net.py").write_text(NET)
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    words = ("train", "--recipe", "embedded-dr0.9", "--device", "cpu", *sets)
    assert "trained" in run_script(tmp_path, *words, "--set", "model.name=my_net:Net")


def test_folders_are_searched_first_and_once(tmp_path, search):
    before = list(sys.path)
    first, second = tmp_path / "first", tmp_path / "second"
    search_folders([first, second, first])
    search_folders([second, Path(before[-1])])
    assert sys.path == [str(first), str(second), *before]
    for folder in (first, second):
        folder.mkdir()
        (folder / "twin_of_test_imports.py").write_text(f"PLACE = {folder.name!r}")
    assert import_own("twin_of_test_imports", [second, first]).PLACE == "first"  # it was there before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_made", "the module 'half_made' cannot be imported: No module named 'not_installed'"),
        ("wrong_name", "the module 'wrong_name' cannot be imported: cannot import name 'nothing'"),
        ("half_made_package.part", "no module 'half_made_package.part' in"),
        ("", "'' is not a module name"),
        (".half_made", "'.half_made' is not a module name"),
    ],
)
def test_what_cannot_be_imported_is_told(tmp_path, search, name, message):
    (tmp_path / "half_made.py").write_text("import not_installed")
    (tmp_path / "wrong_name.py").write_text("from math import nothing")
    (tmp_path / "half_made_package").mkdir()
    with pytest.raises(UserError, match=message):
        import_own(name, [tmp_path])


Graph = Mapping[str, set[str]]


def walk_running(node: ast.AST) -> Iterator[ast.AST]:
    """All that may run, functions' bodies included; what stands under TYPE_CHECKING does not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from walk_running(child)


def read_imports(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules a file imports. `from package import module` needs the module alone, not the package's names."""
    found = set()
    for node in walk_running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & set(modules)
            if members - set(modules):
                found.add(str(node.module))
    return found


def read_graph(package: Path) -> Graph:
    """Every module of a package with the modules it imports, also inside functions, others' by their full name too."""
    paths = {path.relative_to(package.parent).with_suffix(""): path for path in package.rglob("*.py")}
    modules = {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: read_imports(path, modules) - {name} for name, path in modules.items()}


def find_cycle(graph: Graph) -> list[str]:
    """A way from a module back to itself, empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def join_rooms(graph: Graph) -> Graph:
    """The same for what stands in the package itself: its modules and packages, each as one."""
    rooms: dict[str, set[str]] = {}
    for name, imported in graph.items():
        room = name.split(".")[:2]
        others = {tuple(other.split(".")[:2]) for other in imported if other in graph} - {tuple(room)}
        rooms.setdefault(".".join(room), set()).update(".".join(other) for other in others)
    return rooms


def reach(graph: Graph, start: str) -> set[str]:
    """All that is imported once a package or module is, by way of others too."""
    waiting, seen = [name for name in graph if f"{name}.".startswith(f"{start}.")], set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, set())
    return seen


PACKAGE = Path(stablenet.__file__).parent
GRAPH = read_graph(PACKAGE)


def test_no_module_imports_itself_by_way_of_others():
    assert len(GRAPH) > 100
    assert find_cycle(GRAPH) == []


def test_no_package_imports_itself_by_way_of_others():
    assert find_cycle(join_rooms(GRAPH)) == []


def test_the_weighting_imports_torch_and_single_modules_alone():
    reached = reach(GRAPH, "stablenet.weighting")
    assert "stablenet.weighting.dataset" in reached
    ours = {name for name in reached if name in GRAPH and not f"{name}.".startswith("stablenet.weighting.")}
    assert all((PACKAGE / f"{name.removeprefix('stablenet.')}.py").is_file() for name in ours), ours
    others = {name.partition(".")[0] for name in reached - set(GRAPH)} - sys.stdlib_module_names
    assert others == {"torch", "triton", "filelock"}  # torch itself needs the latter two


def test_the_engine_stands_below_what_is_computed_after_training():
    above = {"evaluation", "bench", "report", "demo", "export", "saliency", "diagnose", "cli"}
    assert {name.split(".")[1] for name in reach(GRAPH, "stablenet.engine") if name.count(".")} & above == set()


def test_the_engine_knows_no_method_by_name():
    package = Path(stablenet.__file__).parent
    files = [*sorted((package / "engine").glob("*.py")), package / "cli" / "progress.py"]
    words = {name for name in ALGORITHMS if name not in ("erm", "stablenet")}  # the default; the package's own name
    words |= {"context_use", "offsets_left", "dependence_before", "dependence_after", "ess_ratio"}
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    said = [node.value for node in nodes if isinstance(node, ast.Constant) and node.value in words]
    assert said == []


@pytest.mark.parametrize(
    ("first", "second", "cycle"),
    [
        ("from made.second import X", "import made.second", False),
        ("from made.second import X", "import made.first", True),
        ("from made import second", "def late():\n    from made.first import X", True),
        ("from made import second", "if TYPE_CHECKING:\n    import made.first", False),
        ("from made import second", "from made import NAME", True),  # the package imports the first
    ],
)
def test_cycles_are_found(tmp_path, first, second, cycle):
    (tmp_path / "made").mkdir()
    for name, text in (("__init__", "import made.first"), ("first", first), ("second", second)):
        (tmp_path / "made" / f"{name}.py").write_text(text)
    assert bool(find_cycle(read_graph(tmp_path / "made"))) == cycle


def test_cycles_of_packages_are_found():
    graph = {"m.a.x": {"m.b.x"}, "m.a.y": set(), "m.b.x": set(), "m.b.y": {"m.a.y"}}
    assert not find_cycle(graph)
    assert find_cycle(join_rooms(graph))
