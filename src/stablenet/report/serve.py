"""The report on localhost, rebuilt while runs continue; the browser reloads it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stablenet.engine.config import hash_values
from stablenet.errors import UserError
from stablenet.files import read_text
from stablenet.pages import add_script
from stablenet.report.gather import ReportSettings
from stablenet.report.report_page import SCRIPTS, Report, build_report

HOST = "127.0.0.1"
_WATCHED = ("status.json", "records.jsonl", "evaluation.jsonl", "oracle-evaluation.jsonl")
_STAMP = "/stamp"
# Asks every two seconds whether there is a newer page; an open dialog is not taken from its reader.
_REFRESH = """(() => {
  let seen = null;
  setInterval(async () => {
    try {
      const stamp = await (await fetch("/stamp", { cache: "no-store" })).text();
      if (seen !== null && stamp !== seen && !document.querySelector("dialog[open]")) location.reload();
      else if (seen === null) seen = stamp;
    } catch { /* the server is gone: the page stays as it is */ }
  }, 2000);
})();"""


class Watch:
    """Serves the latest page, and rebuilds it when a file of a run has changed.

    port: 0 takes a free one.   seconds: between two checks of the runs.   tell: called with a message for every rebuild
        and failure.
    """

    def __init__(
        self, settings: ReportSettings, port: int, seconds: float = 5.0, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self._settings, self._seconds, self._tell = settings, seconds, tell
        self._stop = threading.Event()
        self._state = ""
        self._served = ("", b"")  # stamp and page, replaced together
        self._server = _bind(port, self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.report: Report | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}/"

    @property
    def stamp(self) -> str:
        """Changes with every rebuild."""
        return self._served[0]

    @property
    def page(self) -> bytes:
        """The page as served: with the script that polls for newer ones."""
        return self._served[1]

    def run(self) -> None:
        """Until `stop`, or Ctrl-C. The first page must succeed; a later failure is reported and the old page stays."""
        try:
            self.refresh()
            self._thread.start()
            while not self._stop.wait(self._seconds):
                try:
                    self.refresh()
                except UserError as error:
                    self._tell(f"kept the page as it is: {error}")
        except KeyboardInterrupt:
            self._tell("stopped")
        finally:
            self.close()

    def refresh(self) -> None:
        """Build the page again if anything has changed."""
        state = take_state(self._settings.runs)
        if state == self._state:
            return
        self.report = build_report(self._settings)
        page = add_script(read_text(self._settings.page), SCRIPTS, _REFRESH)
        self._served = (state, page.encode())
        self._state = state
        self._tell(f"{len(self.report.gathered.runs)} runs on the page")

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def take_state(runs: Path) -> str:
    """A fingerprint of the runs' files: their names, sizes and times."""
    files = sorted(path for name in _WATCHED for path in runs.glob(f"*/{name}"))
    seen = {}
    for path in files:
        try:
            found = path.stat()
        except FileNotFoundError:  # replaced at this moment
            continue
        seen[str(path)] = [found.st_size, found.st_mtime_ns]
    return hash_values(seen)


def _bind(port: int, watch: Watch) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == _STAMP:
                self._answer(watch.stamp.encode(), "text/plain")
            elif self.path in ("/", "/index.html"):
                self._answer(watch.page, "text/html; charset=utf-8")
            else:
                self.send_error(404)

        def _answer(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            with suppress(ConnectionError):  # the tab was closed
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """The terminal shows pages made, not requests."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise UserError(
                f"port {port} is in use or not allowed: choose another with --port, or 0 for a free one"
            ) from error
        raise
    except OverflowError as error:
        raise UserError(f"port {port} is not between 0 and 65535: choose another with --port") from error
