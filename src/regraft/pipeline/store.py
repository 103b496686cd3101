"""Folders that Spark can write to, wherever they are: a thin layer over Hadoop's file systems.

Rules:

- A path is a text. One without a scheme is a folder of this machine, whatever Spark's default is.
- A file that is *made* is there as a whole or not at all, and never in place of another one: it is
  written under a hidden name first. Who comes second is told so.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from regraft.errors import DiskError, LocalError

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://?.*")


class Entry(NamedTuple):
    """Something in a folder."""

    name: str
    is_folder: bool
    size: int


def whole(path: str) -> str:
    """A path with its scheme."""
    if not path.strip():
        raise LocalError("bad-configuration", "say where the archive is: a folder, or s3a://...")
    if SCHEME.fullmatch(path):
        return path.rstrip("/")
    return f"file://{Path(path).expanduser().absolute()}"


def arrow_knows(root: str) -> bool:
    """Whether Arrow can read and write there."""
    import pyarrow as pa

    try:
        filesystem(root)
    except (pa.ArrowException, OSError, NotImplementedError):
        return False
    return True


def filesystem(root: str) -> tuple[Any, str]:
    """Arrow's file system for a root, and the path in it."""
    from pyarrow import fs

    if root.startswith("file:"):  # as it is: a path may have any characters
        return fs.LocalFileSystem(), "/" + root.removeprefix("file:").lstrip("/")
    found: tuple[Any, str] = fs.FileSystem.from_uri(root.replace("s3a://", "s3://"))
    return found


class Store:
    """One folder and all below it; paths are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = whole(root)
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        gateway: Any = spark.sparkContext._gateway
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._rename_nothing = gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 1)
        self._rename_nothing[0] = jvm.org.apache.hadoop.fs.Options.Rename.NONE
        try:
            top = self._path(self.root)
            self._files = top.getFileSystem(conf)
            self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(top.toUri(), conf)
        except Exception as error:
            raise LocalError(
                "bad-configuration", f"Spark knows no way to {self.root}: {_reason(error)}"
            ) from None

    def path(self, name: str = "") -> str:
        """The whole path of something."""
        return f"{self.root}/{name}" if name else self.root

    def local(self, name: str = "") -> Path | None:
        """The same as a path of this machine; None if it is elsewhere."""
        if not self.root.startswith("file:"):
            return None
        return Path("/" + self.root.removeprefix("file:").lstrip("/")) / name

    def there(self, name: str = "") -> bool:
        """Whether something is there."""
        with _told(f"look at {name or self.root}"):
            return bool(self._files.exists(self._at(name)))

    def list(self, name: str = "") -> list[Entry]:
        """What is in a folder, in order; nothing if there is none."""
        with _told(f"list {name or self.root}"):
            if not self._files.exists(self._at(name)):
                return []
            found = self._files.listStatus(self._at(name))
            entries = [Entry(one.getPath().getName(), one.isDirectory(), one.getLen())
                       for one in found]  # fmt: skip
        return sorted(entries)

    def read(self, name: str) -> bytes:
        """A whole file."""
        with _told(f"read {name}"):
            stream = self._files.open(self._at(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def make(self, name: str, data: bytes) -> bool:
        """Make a file; False if there is one of this name already."""
        folder, _, leaf = name.rpartition("/")
        hidden = f"{folder}/.{leaf}.{uuid.uuid4().hex}" if folder else f".{leaf}.{uuid.uuid4().hex}"
        with _told(f"write {name}"):
            stream = self._files.create(self._at(hidden), False)
            try:
                stream.write(data)
                if hasattr(stream, "hsync"):
                    stream.hsync()
            finally:
                stream.close()
        return self.move(hidden, name)

    def move(self, old: str, new: str) -> bool:
        """Give a file another name; False, and the old one is gone, if that name is taken."""
        try:
            self._files.mkdirs(self._at(new.rpartition("/")[0]))
            self._context.rename(self._at(old), self._at(new), self._rename_nothing)
        except Exception as error:
            if "FileAlreadyExists" in str(error) or self.there(new):
                self.remove(old)
                return False
            raise DiskError("journal-failed", f"cannot write {new}: {_reason(error)}") from None
        return True

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all in it; nothing if it is not there."""
        with _told(f"remove {name}"):
            self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._path(self.path(name))


class _told:
    """Says in one sentence what Java could not do."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        if error is not None and kind.__module__.startswith("py4j"):
            raise DiskError("journal-failed", f"cannot {self.what}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else str(error).splitlines()[0]
