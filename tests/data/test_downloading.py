"""Downloads from a server on this machine: checksums, interruptions and servers without ranges."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nearkin.data.cub200 import fetch
from nearkin.data.downloading import download

CONTENT = bytes(range(256)) * 20_000
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server():
    """Serves ``server.content``; it can cut answers short, and ignore ranges."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            httpd.requests.append(self.headers.get("Range"))
            start = 0
            if self.headers.get("Range") and httpd.ranges:
                start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                if start >= len(httpd.content):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(httpd.content) - start))
            self.end_headers()
            self.wfile.write(httpd.content[start : httpd.cut_at])

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.content, httpd.cut_at, httpd.ranges, httpd.requests = CONTENT, None, True, []
    httpd.url = f"http://127.0.0.1:{httpd.server_port}/file"
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_file_comes_whole_and_only_once(server, tmp_path):
    seen = []
    path = download(server.url, tmp_path / "new/file", md5=MD5, progress=lambda *counts: seen.append(counts))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert download(server.url, path, md5=MD5) == path
    assert server.requests == [None]
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(server, tmp_path, ranges):
    server.cut_at = 3_000_000
    with pytest.raises(ConnectionError, match="run again to go on from here"):
        download(server.url, tmp_path / "file", md5=MD5)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").stat().st_size == 3_000_000
    server.cut_at, server.ranges = None, ranges
    assert download(server.url, tmp_path / "file", md5=MD5).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=3000000-"]


def test_a_part_that_was_complete_is_only_checked(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert download(server.url, tmp_path / "file", md5=MD5).read_bytes() == CONTENT


def test_a_wrong_checksum_removes_the_file(server, tmp_path):
    with pytest.raises(ValueError, match=f"the checksum is {MD5} and should be 0123; the file was removed"):
        download(server.url, tmp_path / "file", md5="0123")
    assert not list(tmp_path.iterdir())


def test_no_server_and_no_scheme(server, tmp_path):
    with pytest.raises(ConnectionError, match="download of http://127.0.0.1:1/x stopped"):
        download("http://127.0.0.1:1/x", tmp_path / "file", md5=MD5)
    with pytest.raises(ValueError, match="only http and https"):
        download("file:///etc/hostname", tmp_path / "file", md5=MD5)


def test_the_birds_archive_is_fetched_and_unpacked(server, tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo("CUB_200_2011/images.txt")
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"1 a\n"))
    server.content = archive.getvalue()
    md5 = hashlib.md5(server.content).hexdigest()
    fetch(tmp_path, url=server.url, md5=md5)
    fetch(tmp_path, url=server.url, md5=md5)
    assert (tmp_path / "CUB_200_2011/images.txt").read_text() == "1 a\n"
    assert len(server.requests) == 1
    assert not list(tmp_path.glob("*.tgz*"))
    with pytest.raises(ValueError, match="cub200 needs root=.* to download into"):
        fetch(None)
