"""Which runs a table needs: each once, by the hash the engine gives it, with the time of measured speeds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stablenet.bench.cells import check_methods, choose_rows, flatten, make_run
from stablenet.bench.paper_tables import find_table
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.worker import Speed, estimate, guess_gigabytes, read_speeds, speeds_path
from stablenet.data.splits import read_parameters
from stablenet.engine.run import load_run
from stablenet.errors import UserError

DEVICE = "cpu: somewhere"


def test_runs_are_planned_once_and_recognised(made):
    plan = make_plan(made.table, made.runs, TablePart(seeds=(0, 1, 2)))
    assert len(plan.runs) == 2 * 2 * 3  # two methods, two configs behind four columns, three seeds
    assert [run.state for run in plan.runs] == ["finished"] * 8 + ["to do"] * 4
    assert len(plan.left) == 4
    shared = next(run for run in plan.runs if run.folder.name.startswith("bars-half-erm-seed0"))
    assert set(shared.cells) == {("erm", "half"), ("erm", "colour")}
    assert all(load_run(run.folder).hash == run.run.hash for run in plan.runs if not run.left)


def test_two_recipes_of_one_config_are_one_run(tmp_path):
    """The ablation's first point and the row StableNet-L are the same run, whatever they are called."""
    choice = TablePart(seeds=(0,), methods=("stablenet",))
    points = make_plan(find_table("ablation-fourier"), tmp_path, choice).runs
    (linear,) = make_plan(find_table("ablation-linear"), tmp_path, replace(choice, methods=("stablenet-l",))).runs
    assert points[0].run.hash == linear.run.hash
    assert len({run.run.hash for run in points}) == 7


def test_the_original_of_all_ablations_is_the_main_tables_run(tmp_path):
    """Figure 3a's 5x, 3b's N and 3c's 1x are trained once, as StableNet at the same ratio."""
    places = {
        "ablation-fourier-mnistm": ("stablenet", "functions-5"),
        "ablation-linear-mnistm": ("stablenet-n", "nico"),
        "ablation-memory-mnistm": ("stablenet", "memory-1"),
        "mnist-m": ("stablenet", "dr0.9"),
    }
    choices = {name: TablePart(seeds=(0,), methods=(row,), columns=(col,)) for name, (row, col) in places.items()}
    plans = [make_plan(find_table(name), tmp_path, choice).runs for name, choice in choices.items()]
    assert len({run.run.hash for (run,) in plans}) == 1


@pytest.mark.parametrize("name", ["unbalanced-5", "flexible-5", "mnist-m", "classic", "ablation-memory", "embedded"])
def test_the_papers_tables_can_be_planned(name, tmp_path):
    """All configs are whole and all methods take their parameters; nothing of the data is read."""
    table = find_table(name)
    plan = make_plan(table, tmp_path, TablePart(seeds=(0,)))
    assert {row for run in plan.runs for row, _ in run.cells} == {row.id for row in table.rows if not row.extra}


RESULTS = Path(__file__).parents[2] / "results"
OURS = [path for path in sorted(RESULTS.glob("**/*.toml")) if "[[row]]" in path.read_text()]


@pytest.mark.parametrize("path", OURS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_our_own_tables_can_be_planned(path, tmp_path, monkeypatch):
    """Every recipe, method, parameter and split is known; the weights file may hold anything."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "resnet50-imagenet-caffe-fp16.safetensors").write_bytes(b"weights")
    table = find_table(str(path))
    plan = make_plan(table, tmp_path / "runs", TablePart(seeds=(0,)), root=tmp_path / "data")
    assert {row for run in plan.runs for row, _ in run.cells} == {row.id for row in table.rows if not row.extra}
    if path.parent.name == "natural":
        for each in plan.runs:
            settings = each.run.config.data
            read_parameters(settings.setting, settings.parameters)


def test_averaged_weights_are_evaluated_where_there_are_some(made):
    plan = make_plan(made.table, made.runs, TablePart(seeds=(0,)))
    swad = replace(made.table, settings={"train": {"averaging": "swad"}})
    assert {order.rules for order in make_orders(plan.runs, made.table, made.runs)} == {("source-validation", "last")}
    averaged = make_plan(swad, made.runs, TablePart(seeds=(0,))).runs
    assert all(order.rules[-1] == "averaged" for order in make_orders(averaged, swad, made.runs))
    assert {order.rules for order in make_orders(averaged, swad, made.runs, rules=())} == {()}


def test_a_run_under_another_name_is_found(bench):
    path = make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).runs[0].folder
    path.rename(bench.runs / "mine")
    assert make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).runs[0].folder == bench.runs / "mine"


def test_a_damaged_run_is_neither_done_nor_left(bench):
    path = make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).runs[0].folder
    (path / "records.jsonl").write_text("")
    plan = make_plan(bench.table, bench.runs, TablePart(seeds=(0,)))
    assert [run.folder for run in plan.damaged] == [path]
    assert plan.left == ()


def test_a_run_killed_between_two_evaluations_is_left(bench):
    path = make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).runs[0].folder
    first, *_ = (path / "evaluation.jsonl").read_text().splitlines(keepends=True)
    (path / "evaluation.jsonl").write_text(first)
    plan = make_plan(bench.table, bench.runs, TablePart(seeds=(0,)))
    assert [(run.folder, run.state) for run in plan.left] == [(path, "not evaluated")]
    (path / "last.safetensors").unlink()  # as in published records: nothing to evaluate
    assert make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).left == ()


def test_a_run_that_was_never_begun_is_left(bench):
    path = make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).runs[0].folder
    for file in path.iterdir():
        if file.name != "manifest.tsv":
            file.unlink()
    assert [run.folder for run in make_plan(bench.table, bench.runs, TablePart(seeds=(0,))).left] == [path]


def test_finished_runs_left_their_speed(made):
    speeds = read_speeds(speeds_path(made.runs))
    assert len(speeds) == 8
    plan = make_plan(made.table, made.runs, TablePart(seeds=(2,)), speeds[0].device)
    assert plan.unmeasured == ()
    per_epoch = sorted(s.seconds_per_epoch for s in speeds if s.series == plan.runs[0].run.series)
    assert plan.runs[0].estimate.seconds == pytest.approx(2 * sum(per_epoch) / 2)  # two epochs, median of two speeds
    assert plan.seconds == pytest.approx(sum(run.seconds for run in plan.runs))


def make_speed(**values):
    standard = {
        "series": "s",
        "recipe": "r",
        "source": "tiny",
        "model": "paper-cnn",
        "image_size": 12,
        "batch_size": 8,
        "method": "erm",
        "device": DEVICE,
        "stablenet": "1",
        "seconds_per_epoch": 10.0,
        "images_per_second": 1.0,
        "peak_gigabytes": None,
    }
    return Speed(**{**standard, **values})


def test_speeds_of_this_config_and_device_come_first(made):
    run = make_run(made.table, made.table.rows[0], made.table.columns[0], 0)
    same = make_speed(series=run.series, seconds_per_epoch=3.0)
    similar, elsewhere = make_speed(), make_speed(series=run.series, device="cuda: fast", seconds_per_epoch=0.1)
    assert estimate([elsewhere, similar, same], run, DEVICE).seconds == 2 * 3.0
    judged = estimate([elsewhere, similar], run, DEVICE)
    assert (judged.seconds, judged.basis, judged.device) == (20.0, "similar", DEVICE)
    assert estimate([elsewhere], run, DEVICE).device == "cuda: fast"


def test_no_time_is_made_up(made):
    run = make_run(made.table, made.table.rows[0], made.table.columns[0], 0)
    assert estimate([make_speed(method="stablenet"), make_speed(image_size=224)], run, DEVICE) is None
    plan = make_plan(made.table, made.runs / "none", TablePart(seeds=(0,)))
    assert (len(plan.unmeasured), plan.seconds) == (4, 0.0)


def test_memory_is_what_was_measured_or_a_guess(made):
    run = make_run(made.table, made.table.rows[0], made.table.columns[0], 0)
    assert guess_gigabytes([make_speed(peak_gigabytes=5.0), make_speed(peak_gigabytes=4.0)], run, DEVICE) > 5.0
    large = make_run(find_table("classic"), made.table.rows[0], find_table("classic").columns[0], 0)
    assert guess_gigabytes([], run, DEVICE) < 2 < 10 < guess_gigabytes([], large, DEVICE)


def test_orders_travel_as_plain_values(made):
    plan = make_plan(made.table, made.runs, TablePart(seeds=(5,)))
    order = make_orders(plan.left, made.table, made.runs)[0]
    assert json.loads(json.dumps(order.config)) == order.config
    assert order.folder.startswith("/")
    assert order.imports == ("tests.engine.tiny",)
    assert order.folders == (str(made.table.path.parent), str(Path.cwd()))


def test_settings_are_flattened_for_the_command_line():
    values = {"train": {"epochs": 3, "milestones": [2]}, "method": {"name": "erm", "parameters": {}}}
    assert flatten(values) == ["train.epochs=3", "train.milestones=[2]", 'method.name="erm"']


def test_rows_by_id_or_method(made):
    assert [row.id for row in choose_rows(made.table)] == ["erm", "stablenet"]
    assert [row.id for row in choose_rows(made.table, ["recommended", "irm", "erm", "erm"])] == [
        "recommended",
        "irm",
        "erm",
    ]
    with pytest.raises(UserError, match="did you mean 'stablenet'"):
        choose_rows(made.table, ["stabelnet"])


def test_a_method_names_all_its_rows_whatever_they_are_called(made):
    """Runs of a row that the table has under another name would be shown nowhere."""
    rows = [replace(row, id=f"my-{row.id}") for row in made.table.rows]
    table = replace(made.table, rows=tuple(rows))
    assert [row.id for row in choose_rows(table, ["stablenet", "my-stablenet"])] == ["my-stablenet", "my-recommended"]


def test_mistakes_are_found_before_anything_starts(made, tmp_path):
    row = replace(made.table.rows[0], parameters={"gamma": 2})
    with pytest.raises(UserError, match=r"unknown setting 'method\.parameters\.gamma': none are available"):
        make_plan(replace(made.table, rows=(row,)), tmp_path, TablePart())
    with pytest.raises(UserError, match="did you mean 'most'"):
        make_plan(made.table, tmp_path, TablePart(columns=("mist",)))
    with pytest.raises(UserError, match="bench search"):
        make_plan(made.table, tmp_path, TablePart(tuned=True))
    unknown = make_run(made.table, replace(made.table.rows[0], method="emr"), made.table.columns[0], 0)
    with pytest.raises(UserError, match="unknown method 'emr'"):
        check_methods([unknown])
