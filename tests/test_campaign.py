"""A short campaign, and that a campaign finds what it looks for."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from random import Random

import pytest

pytest.importorskip("resource")  # forks and limits: not on Windows

from campaign.__main__ import choose, main, make_trials
from campaign.forks import Outcome, import_everything, run_trials
from campaign.odd import GARBLES, mutate_json
from campaign.page import WHAT, write_page
from campaign.parts import PARTS, settings, signals, soak, weighting
from campaign.record import append, read_log, summarise, write_summary
from campaign.trial import Ending, Trial, judge

ALONE = (
    "settings",
    "toml",
    "tables",
    "archives",
    "weighting",
    "strangers",
    "diverging",
)  # parts that need no finished runs


def run_all(makes, folder, **options):
    return {outcome.name: outcome for outcome in run_trials(iter(makes.items()), folder, jobs=2, **options)}


def test_a_short_campaign_is_clean(tmp_path):
    import_everything()
    names = choose(14, list(ALONE))
    outcomes = list(run_trials(make_trials(names, 7, tmp_path / "none"), tmp_path / "trials", jobs=2))
    assert len(outcomes) == len(names)
    assert [(each.name, each.command, each.fault) for each in outcomes if each.fault] == []


def test_faults_are_found(tmp_path):
    """Commands that do what none may do, run in place of StableNet's."""

    def make(action, expect, folder):
        return Trial(words=["list"], expect=expect, environment={"ACTION": action})

    actions = {
        "fine:0": ("raise SystemExit(0)", "any", ""),
        "traceback:0": ("1/0", "any", "traceback"),
        "status:0": ("raise SystemExit(3)", "any", "exit status 3"),
        "empty:0": ("sys.stderr.write('error: \\n'); raise SystemExit(2)", "any", "empty message"),
        "silent:0": ("raise SystemExit(0)", "refused", "accepted (status 0) what had to be refused"),
        "left:0": ("open('x', 'w'); sys.stderr.write('error: this is wrong'); exit(2)", "refused", "left behind"),
        "half:0": ("open('.x.partial', 'w'); raise SystemExit(0)", "any", "leftover: .x.partial"),
        "crash:0": ("os.kill(os.getpid(), 9)", "any", "killed by signal 9"),
    }  # fmt: skip
    code = "import os, sys\ndef run():\n    exec(os.environ['ACTION'])\n"
    module = type(sys)("stablenet.cli.main")
    exec(code, module.__dict__)
    before = sys.modules.get("stablenet.cli.main")
    sys.modules["stablenet.cli.main"] = module
    try:
        makes = {name: partial(make, action, expect) for name, (action, expect, _) in actions.items()}
        outcomes = run_all(makes, tmp_path)
    finally:
        sys.modules.pop("stablenet.cli.main")
        if before is not None:
            sys.modules["stablenet.cli.main"] = before
    for name, (_, _, fault) in actions.items():
        assert outcomes[name].fault.startswith(fault), name
        assert bool(outcomes[name].fault) == bool(fault), name


def test_a_hang_is_found(tmp_path, monkeypatch):
    import time

    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(60)

    monkeypatch.setattr("campaign.forks.HANG", 0.3)
    makes = {"hang:0": lambda folder: Trial(call=ignore, patience=0.3)}
    assert run_all(makes, tmp_path)["hang:0"].fault == "hang"


def test_the_last_net_is_a_fault(tmp_path):
    assert judge(Trial(), Ending(70, "", "error: failed unexpectedly", tmp_path), set()).startswith("last net")
    told = Ending(2, "", "error: this was wrong, do that", tmp_path)
    assert judge(Trial(check=lambda ending: "silent"), told, set()) == "silent"


def test_trials_are_a_function_of_seed_and_name():
    """The same damage for the same generator; every kind of damage changes something or ends the file."""
    data = bytes(range(256)) * 4
    for garble in GARBLES:
        assert garble(Random(1), data) == garble(Random(1), data)
    values = {"a": [1, {"b": "c"}], "d": None}
    assert json.dumps(mutate_json(Random(3), values)) == json.dumps(mutate_json(Random(3), values))
    assert any(mutate_json(Random(k), values) != values for k in range(5))


def test_the_log_resumes_and_the_summary_counts(tmp_path):
    log = tmp_path / "log.jsonl"
    for outcome in (Outcome("a:0", "", "x", 5, 1.0), Outcome("b:0", "traceback", "long x", 1, 1.0)):
        append(log, outcome)
    append(log, Outcome("b:1", "traceback", "x", 1, 1.0))
    append(log, Outcome("c:0", "hang", "y", 1, 1.0))
    append(log, Outcome("c:0", "", "y", 1, 1.0, kills={"train": 2}))
    with log.open("a") as file:
        file.write('{"name": "half')
    summary = summarise(read_log(log).values(), 3)
    assert (summary["tried"], summary["clean"], summary["failed"], summary["mended"]) == (4, 2, 2, 1)
    assert summary["kills"] == {"train": 2}
    assert list(summary["mended_faults"]) == ["hang"]
    assert summary["parts"]["a"]["inputs"] == 5
    assert [one["trial"] for one in summary["faults"]["traceback"]["shortest"]] == ["b:1", "b:0"]


def test_a_summary_may_hold_what_is_no_text(tmp_path):
    write_summary(tmp_path / "new" / "s.json", summarise([[Outcome("a:0", "traceback", "--set \udcff", 1, 1.0)]], 0))
    read = json.loads((tmp_path / "new" / "s.json").read_text())
    assert read["faults"]["traceback"]["shortest"][0]["command"] == "--set \udcff"


def test_the_page_names_no_place_of_the_machine(tmp_path):
    fault = "last net: the traceback is in /tmp/stablenet-error-a1_b.txt at /x/y/trials/runs-3/cwd/run"
    fault += ' File "/x/y/z.py", line 3'
    failed = Outcome("runs:3", fault, "stablenet predict /x/y/workshop/runs/plain ``` \udcff", 1, 1.0)
    mended = [
        Outcome("toml:1", "traceback", "stablenet train", 1, 1.0),
        Outcome("toml:1", "", "stablenet train", 1, 1.0),
    ]
    summary = {"asked": 4, **summarise([[failed], mended], 0)}
    write_page(tmp_path / "README.md", summary, "make campaign")
    page = (tmp_path / "README.md").read_text()
    assert "/x/y" not in page
    assert "/tmp" not in page
    assert "stablenet predict workshop/runs/plain" in page
    assert "``` \\" not in page
    assert "--only toml:1" in page.partition("Failed before")[2]
    assert "before all 4 trials were done; the parts take turns, so that each was\ntried to 50%" in page
    assert set(PARTS) == set(WHAT)


def test_a_life_that_is_not_flat_is_found():
    flat = [soak.Held(600 << 20, 10)] * 40
    assert soak.judge(flat) == []
    assert soak.judge([soak.Held((600 + k) << 20, 10) for k in range(200)]) == ["memory grew by 100 MiB"]
    assert soak.judge([soak.Held(600 << 20, 10 + k // 10) for k in range(200)]) == ["open files grew by 10"]


def test_what_this_machine_cannot_try_is_counted_as_skipped(tmp_path):
    makes = {"machines:0": lambda folder: Trial(skipped="no mounts here")}
    outcome = run_all(makes, tmp_path)["machines:0"]
    assert (outcome.fault, outcome.skipped) == ("", "no mounts here")
    assert summarise([[outcome]], 0)["skipped"] == 1


def test_a_command_at_work_for_long_is_interrupted_and_has_to_end(tmp_path, monkeypatch):
    import time

    ends = {
        "told:0": "sys.stderr.write('expected to take an hour'); time.sleep(600)",
        "silent:0": "time.sleep(600)",
    }
    module = type(sys)("stablenet.cli.main")
    exec("import os, sys, time\ndef run():\n    exec(os.environ['ACTION'])\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "stablenet.cli.main", module)

    def make(action, folder):
        ended = f"try:\n    {action}\nexcept KeyboardInterrupt:\n    raise SystemExit(130)"
        return Trial(words=["list"], environment={"ACTION": ended}, patience=0.3)

    start = time.monotonic()
    outcomes = run_all({name: partial(make, action) for name, action in ends.items()}, tmp_path)
    assert time.monotonic() - start < 180
    assert outcomes["told:0"].fault == ""
    assert outcomes["silent:0"].fault == "at work for long without a word of how long"


def test_a_campaign_of_5000_holds_what_was_promised():
    """200 kills over every verb that writes, and 20,000 inputs to the weighting."""
    names = choose(5000, None)
    drawn = [signals.draw(Random(f"0/{name}")) for name in names if name.startswith("signals:")]
    kills = [signals.name_verb(verb) for verb, moments in drawn for number, _ in moments if number == signal.SIGKILL]
    assert len(kills) >= 200
    assert set(kills) == {signals.name_verb(verb) for verb in signals.ALL_VERBS}
    assert sum(name.startswith("weighting:") for name in names) * weighting.INPUTS >= 20_000


def test_parts_take_turns():
    names = choose(200, None)
    assert {name.partition(":")[0] for name in names} == set(PARTS)
    assert len({name.partition(":")[0] for name in names[: 2 * len(PARTS)]}) > len(PARTS) / 2
    assert choose(10, ["settings:3"]) == ["settings:3"]


def test_trials_can_be_interrupted_wherever_a_campaign_was_started(tmp_path, monkeypatch):
    """A shell starts its background jobs with SIGINT ignored, and forks inherit that."""
    monkeypatch.setattr("campaign.__main__.make_workshop", lambda folder: None)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["--count", "0", "--work", str(tmp_path)]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("text", ["9" * 40, "2", "2.0"])
def test_only_what_no_double_can_hold_may_be_rounded(text):
    near = float(text)
    assert settings._compare({"a": near}, "a", text) == ""
    assert "silent change" in settings._compare({"a": near * (1 + 1e-15)}, "a", text)
