"""A connection to a Ray cluster: one that is there, or one that is started for a while on this machine."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

PATIENCE = 5.0
"""Seconds for a cluster to answer, and for cancelled tasks to end."""


class RayCluster:
    """A connection, which :meth:`close` ends if this made it.

    Args:
        address: ``HOST:PORT``; ``auto`` finds the cluster of this machine, ``local`` starts one that lives as
            long as the connection. A process that is connected stays with its cluster.

    Attributes:
        ray: The package.

    Raises:
        ValueError: The package is not installed, or the address is of Ray Client.
        ConnectionError: No cluster answers.
    """

    def __init__(self, address: str) -> None:
        try:
            self.ray: Any = import_module("ray")
        except ImportError:
            raise ValueError("--ray needs the package ray: pip install 'nearkin[ray]'") from None
        self._owns_cluster = not self.ray.is_initialized()
        if self._owns_cluster:
            _check_reachable(address)
            with _own_signal_handlers():
                self.ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)

    def nodes(self) -> list[dict[str, float]]:
        """What every node has: ``CPU``, ``GPU`` and so on."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Let go of the cluster; one that was started for this ends."""
        if self._owns_cluster:
            self.ray.shutdown()


def _check_reachable(address: str) -> None:
    """Say at once what Ray would say after minutes, or never."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is an address for Ray Client, through which files do not come back during a run: "
            "start the command on a machine of the cluster with --ray auto or --ray HOST:PORT"
        )
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): ray status shows where one is"
        ) from None


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Leave the handling of SIGTERM, which Ray takes over, to whoever had it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
