"""``nearkin serve`` in a process of its own, and many clients at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Serving:
    """A server that runs.

    Attributes:
        process: Its process.
        address: Of the page.
        log: The file with what it logged.
    """

    process: subprocess.Popen[str]
    address: str
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return answer.read().decode()

    def memory(self) -> float:
        lines = self.get("metrics").splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("nearkin_resident_memory"))


@contextmanager
def serving(*arguments: object, log: Path, **variables: str) -> Iterator[Serving]:
    """Starts ``nearkin serve`` on a free port, waits until it answers, ends it."""
    command = [sys.executable, "-m", "nearkin", "serve", *map(str, arguments), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"} | variables
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
        try:
            line = process.stdout.readline()
            assert line.startswith("page "), f"{line!r}; {log.read_text()}"
            yield Serving(process, line.split()[1], log)
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


@dataclass
class Load:
    """What many clients saw.

    Attributes:
        seconds: Of every request that was answered with 200.
        failures: Statuses and errors of all others.
    """

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def load(address: str, path: str, bodies: Sequence[bytes], *, clients: int, seconds: float) -> Load:
    """Clients that send one request after the other, each on a connection of its own."""
    found = Load()
    until = time.perf_counter() + seconds
    place = urlsplit(address)

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        turn = number
        while time.perf_counter() < until:
            body = bodies[turn % len(bodies)]
            turn += 1
            started = time.perf_counter()
            head = f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            status = await _answer(reader)
            if status == 200:
                found.seconds.append(time.perf_counter() - started)
            else:
                found.failures.append(str(status))
        writer.close()

    async def run() -> None:
        results = await asyncio.gather(*map(client, range(clients)), return_exceptions=True)
        found.failures.extend(repr(one) for one in results if one is not None)

    asyncio.run(run())
    return found


async def _answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(int(length.partition(":")[2]))
    return int(head.split(" ", 2)[1])
