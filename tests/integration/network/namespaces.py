"""Two network namespaces of this machine, with a cable between them that can be pulled.

    this namespace -- 10.N.1.1/24 --- 10.N.1.2 -- left
    this namespace -- 10.N.2.1/24 --- 10.N.2.2 -- right
                      left -- 10.N.0.1 --- cable --- 10.N.0.2 -- right

Nodes listen at .1.2 and .2.2, where the test reaches them whatever happens to the cable. While it
is pulled, one side has no way to the other and is told so; the other side only hears nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from faults.mounts import call, find

PREFIX = "regraft-net-"
FOLDER = Path("/run/netns")


def missing() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root can make network namespaces"
    if not find("ip"):
        return "ip (iproute2) is not installed"
    name = f"{PREFIX}{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        try:
            _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
        finally:
            _ip("netns", "del", name)
    except OSError as error:
        return f"there can be no network namespaces with interfaces: {error}"
    return ""


class Cable:
    """What connects the two."""

    def __init__(self) -> None:
        self._number = 64 + os.getpid() % 128
        self.left, self.right = (f"{PREFIX}{os.getpid()}-{side}" for side in ("left", "right"))

    def host(self, side: str) -> str:
        """The address of a side."""
        return f"10.{self._number}.{1 if side == self.left else 2}.2"

    @staticmethod
    def inside(side: str) -> list[str]:
        """What to write before a command that shall run there."""
        return [find("ip"), "netns", "exec", side]

    def lay(self) -> None:
        """Make all of it."""
        net = f"10.{self._number}"
        for index, side in enumerate((self.left, self.right), 1):
            _ip("netns", "add", side)
            _ip("-n", side, "link", "set", "lo", "up")
            here = f"rg{os.getpid() % 100_000}x{index}"
            _ip("link", "add", here, "type", "veth", "peer", "name", "door", "netns", side)
            _ip("addr", "add", f"{net}.{index}.1/24", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", side, "addr", "add", f"{net}.{index}.2/24", "dev", "door")
            _ip("-n", side, "link", "set", "door", "up")
        cable = ["cable", "netns", self.left, "type", "veth", "peer", "name", "cable"]
        _ip("link", "add", *cable, "netns", self.right)
        _ip("-n", self.left, "addr", "add", f"{net}.0.1/24", "dev", "cable")
        _ip("-n", self.right, "addr", "add", f"{net}.0.2/24", "dev", "cable")
        _ip("-n", self.right, "link", "set", "cable", "up")
        self.plug()

    def plug(self) -> None:
        """Connect the two."""
        net = f"10.{self._number}"
        _ip("-n", self.left, "link", "set", "cable", "up")
        for side, other, via in ((self.left, 2, 2), (self.right, 1, 1)):
            route = [f"{net}.{other}.0/24", "via", f"{net}.0.{via}", "src", self.host(side)]
            _ip("-n", side, "route", "replace", *route)

    def pull(self) -> None:
        """Separate them."""
        _ip("-n", self.left, "link", "set", "cable", "down")

    def remove(self) -> None:
        """Leave nothing behind."""
        for side in (self.left, self.right):
            with contextlib.suppress(OSError):
                _ip("netns", "del", side)  # and with it both ends of what leads there


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Two namespaces, for a while."""
    sweep()
    made = Cable()
    try:
        made.lay()
        yield made
    finally:
        made.remove()


def sweep() -> None:
    """Clean up after processes that had no time to do so."""
    for path in FOLDER.glob(f"{PREFIX}*") if FOLDER.is_dir() else ():
        owner = re.match(rf"{PREFIX}(\d+)-", path.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            with contextlib.suppress(OSError):
                _ip("netns", "del", path.name)


def _ip(*arguments: str) -> None:
    call("ip", *arguments)
