"""Downloads from a small local server: progress, resume, checksum, and what is said when it fails."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from stablenet.data.sources.source import Download, Source, download_source
from stablenet.errors import UserError

CONTENT = bytes(range(256)) * 20_000


class Server:
    """Serves CONTENT (or another); can ignore ranges, and break off after some bytes."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.ranges = True
        self.break_after: int | None = None
        self.requests: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/file"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.requests.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start >= len(self.content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(self.content) - start))
        handler.end_headers()
        body = self.content[start:]
        with suppress(ConnectionError):  # the client may have had enough
            handler.wfile.write(body if self.break_after is None else body[: self.break_after])


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.server.shutdown()
    running.server.server_close()


def source(url: str, md5: str | None = hashlib.md5(CONTENT).hexdigest(), file: str = "sub/x.bin") -> Source:
    return Source(
        name="x",
        title="x",
        origin="x",
        licence="x",
        layouts=("a/b",),
        read=lambda root: None,  # type: ignore[arg-type,return-value]
        downloads=(Download(url=url, file=file, md5=md5),),
        by_hand="fetch x at its home",
    )


def test_download_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    files = download_source(source(server.url), tmp_path, lambda *step: seen.append(step))
    assert files == [tmp_path / "sub/x.bin"]
    assert files[0].read_bytes() == CONTENT
    assert seen[-1] == ("sub/x.bin", len(CONTENT), len(CONTENT))
    assert [step[1] for step in seen] == sorted({step[1] for step in seen})
    assert len(seen) > 1
    assert [file.name for file in files[0].parent.iterdir()] == ["x.bin"]


def test_a_whole_file_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    download_source(source(server.url), tmp_path)
    download_source(source(server.url), tmp_path)
    assert server.requests == [None]
    (tmp_path / "sub/x.bin").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"has the MD5 .*, expected .*: delete it"):
        download_source(source(server.url), tmp_path)
    assert (tmp_path / "sub/x.bin").read_bytes() == b"something else", "a user's file is not ours to delete"


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.break_after = 1_500_000
    with pytest.raises(UserError, match=r"was interrupted .* run it again to resume"):
        download_source(source(server.url), tmp_path)
    part = tmp_path / "sub/x.bin.part"
    assert part.read_bytes() == CONTENT[:1_500_000]
    assert not (tmp_path / "sub/x.bin").exists()
    server.break_after = None
    seen: list[int] = []
    download_source(source(server.url), tmp_path, lambda file, done, total: seen.append(done))
    assert server.requests == [None, "bytes=1500000-"]
    assert seen[0] > 1_500_000
    assert (tmp_path / "sub/x.bin").read_bytes() == CONTENT
    assert not part.exists()


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.bin.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    download_source(source(server.url), tmp_path)
    assert (tmp_path / "sub/x.bin").read_bytes() == CONTENT


def test_a_part_that_is_already_whole(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.bin.part").write_bytes(CONTENT)
    download_source(source(server.url), tmp_path)
    assert (tmp_path / "sub/x.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(UserError, match="has the MD5"):
        download_source(source(server.url), tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


def test_a_part_of_another_file_is_not_resumed_twice(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.bin.part").write_bytes(b"!" * 1000)
    with pytest.raises(UserError, match="has the MD5"):
        download_source(source(server.url), tmp_path)
    download_source(source(server.url), tmp_path)
    assert server.requests == ["bytes=1000-", None]
    assert (tmp_path / "sub/x.bin").read_bytes() == CONTENT


def test_an_archive_without_checksum_is_proven_by_its_own(server: Server, tmp_path: Path) -> None:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", b"hello world" * 50)
    server.content = buffer.getvalue()
    download_source(source(server.url, None, "good.zip"), tmp_path)
    server.content = buffer.getvalue().replace(b"hello world", b"hellO world", 1)
    with pytest.raises(UserError, match=r"damaged at a\.txt"):
        download_source(source(server.url, None, "bad.zip"), tmp_path)
    server.content = b"<html>please log in</html>"
    with pytest.raises(UserError, match="not a complete zip archive"):
        download_source(source(server.url, None, "page.zip"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["good.zip"]


def test_without_a_network_it_says_what_to_do_by_hand(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/file"  # nobody listens on the discard port
    with pytest.raises(UserError, match=r"Connection refused.*by hand: fetch x at its home") as caught:
        download_source(source(url), tmp_path)
    assert f"{url} as {tmp_path / 'sub/x.bin'}" in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "nothing is made where nothing came"


def test_no_public_download(tmp_path: Path) -> None:
    bare = Source(
        name="x", title="x", origin="x", licence="x", layouts=("a/b",), read=lambda root: None, by_hand="ask its makers"
    )  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match=r"x has no public download: ask its makers; put it into .* in the layout a/b"):
        download_source(bare, tmp_path)


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **others: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(UserError, match=r"cannot write .*No space left on device; free some space"):
        download_source(source(server.url), tmp_path)
