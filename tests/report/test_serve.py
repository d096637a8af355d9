"""The page on localhost: served, refreshed when runs change, honest about a port in use."""

import json
import shutil
import socket
import struct
import threading
import time
from dataclasses import replace
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.errors import UserError
from stablenet.report.serve import HOST, Watch, take_state
from tests.report.made import copy_runs


@pytest.fixture
def own(made, settings, tmp_path):
    runs = copy_runs(made, tmp_path)
    return replace(settings, runs=runs, output=tmp_path / "report", panels=0)


@pytest.fixture
def watching(own):
    """A watch at work in a thread."""
    told = []
    watch = Watch(own, 0, 0.05, told.append)
    watch.told = told
    thread = threading.Thread(target=watch.run)
    thread.start()
    wait_for(lambda: watch.stamp)
    yield watch
    watch.stop()
    thread.join(30)
    assert not thread.is_alive()


def wait_for(holds, seconds=60):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def fetch(url):
    with urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def test_the_page_is_served_with_its_refreshing(watching, own):
    text = fetch(watching.url)
    assert "location.reload" in text
    assert "location.reload" not in own.page.read_text()
    assert text.rstrip().endswith("</html>")
    with pytest.raises(HTTPError):
        fetch(watching.url + "etc/passwd")


def test_a_closed_tab_is_no_error(watching, capfd):
    """A reader who goes while a page larger than all buffers is on its way."""
    watching._served = ("large", b"x" * 30_000_000)
    with socket.create_connection((HOST, urlsplit(watching.url).port)) as reader:
        reader.sendall(b"GET / HTTP/1.0\r\n\r\n")
        reader.recv(10)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # without a goodbye
    assert fetch(watching.url + "stamp") == "large"
    wait_for(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))
    assert "Traceback" not in capfd.readouterr().err


def test_a_new_run_comes_onto_the_page(watching, own):
    old = fetch(watching.url + "stamp")
    run = next(own.runs.glob("embedded-dr0.9-erm-seed1-*"))
    name = run.name.replace("seed1", "seed7")
    shutil.copytree(run, own.runs / name)
    config = json.loads((run / "config.json").read_text())
    config["config"]["seed"] = config["hashed"]["seed"] = 7
    (own.runs / name / "config.json").write_text(json.dumps(config))
    (own.runs / name / "status.json").touch()
    wait_for(lambda: name in fetch(watching.url))
    assert fetch(watching.url + "stamp") != old


def test_nothing_new_builds_nothing(own, monkeypatch):
    watch = Watch(own, 0)
    watch.refresh()
    monkeypatch.setattr("stablenet.report.serve.build_report", None)
    watch.refresh()
    watch.close()


def test_the_state_changes_with_every_record(own):
    before = take_state(own.runs)
    assert take_state(own.runs) == before
    with next(own.runs.glob("*/records.jsonl")).open("a") as file:
        file.write("\n")
    assert take_state(own.runs) != before


def test_a_failure_keeps_the_page(watching, own):
    shown = fetch(watching.url)
    shutil.move(own.tables[0], own.tables[0] + ".away")
    try:
        next(own.runs.glob("*/status.json")).touch()
        wait_for(lambda: any("kept the page" in text for text in watching.told))
        assert fetch(watching.url) == shown
    finally:
        shutil.move(own.tables[0] + ".away", own.tables[0])


def test_a_port_in_use_is_told(own):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            Watch(own, port)
        words = ["report", "--watch", "--port", str(port), "--runs", str(own.runs), "-o", str(own.output)]
        assert f"port {port} is in use" in str(CliRunner().invoke(app, words).exception)
    with pytest.raises(UserError, match="70000"):
        Watch(own, 70000)


def test_the_command_writes_page_and_tables(made, own):
    words = ["report", str(made / "tiny.toml"), "--runs", str(own.runs), "-o", str(own.output), "--panels", "0"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert "9 runs, 1 tables" in ended.output
    assert (own.output / "tiny.tex").exists()
