"""The folder a node keeps: its lock, its format, who the node is, how often it has started.

    lock           held with flock while a node runs; holds its process id; never removed
    identity.json  {"node_id": 32 hex digits, "created": ISO 8601}
    incarnation    a whole number, one more at every start
    format         the version of all of the above and of what other rooms keep here

- The files of a new folder are made in the order of the list, `format` last with `incarnation`
  still 0. So a first start that was interrupted can be told from a folder that lost a file: the
  one is finished at the next start, the other refused.
- A file is replaced whole: temporary file, fsync, rename, fsync of the folder.
- What is damaged is never made anew in silence. A node with a new id would be a stranger to its
  own data, and one whose incarnation went back would be taken for its own past.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from regraft.errors import DiskError, LocalError, RegraftError
from regraft.model.identity import NODE_ID_BYTES, Identity

FORMAT = 1
FILE_BYTES_MAX = 4096  # none of these files comes near it
DIGITS_MAX = 18  # so that an incarnation fits 64 bits
# What whoever runs the node can put right by naming another folder or changing its rights.
_YOURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}


class DataFolder:
    """An open data folder. Nobody else has it open until `close`."""

    def __init__(self, path: Path, lock: int, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self._lock: int | None = lock

    @classmethod
    def open(cls, path: Path, name: str = "regraft") -> DataFolder:
        """Make the folder or find it, lock it, and begin a new incarnation of the node in it."""
        path = Path(path).absolute()
        _make(path)
        lock = _acquire(path)
        try:
            if not (path / "format").exists():
                _found(path)
            _check_format(path / "format")
            node_id = _read_node_id(path / "identity.json")
            incarnation = _number(path / "incarnation") + 1
            replace_file(path / "incarnation", f"{incarnation}\n".encode())
            return cls(path, lock, Identity(node_id, name, incarnation))
        except BaseException:
            _release(lock)
            raise

    def close(self) -> None:
        """Let others have the folder. A second call does nothing."""
        if self._lock is not None:
            _release(self._lock)
            self._lock = None

    def __enter__(self) -> DataFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that after a crash there is the old content or the new, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _refuse("write", path, error) from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    if path.is_dir():
        return
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        if os.path.lexists(path):
            raise LocalError(
                "bad-configuration",
                f"the data folder {path} is not a folder; name another one with --data",
            ) from None
        raise _refuse("write", path, error) from error


def _acquire(path: Path) -> int:
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _refuse("write", path / "lock", error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock
    except BlockingIOError:
        # Empty for a moment between another's flock and its writing.
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise DiskError(
            "data-folder-locked",
            f"{who} uses the data folder {path}; "
            "stop it, or give this node a folder of its own with --data",
        ) from None
    except OSError as error:
        os.close(lock)
        raise _refuse("write", path / "lock", error) from error


def _release(lock: int) -> None:
    # The file stays: if it were removed, two nodes could each lock a file of that name.
    with contextlib.suppress(OSError):  # a full disk must not keep the lock
        os.ftruncate(lock, 0)
    os.close(lock)


def _found(path: Path) -> None:
    """Make the files of a new folder, or finish what an interrupted first start began."""
    identity, incarnation = path / "identity.json", path / "incarnation"
    if incarnation.exists():
        if not identity.exists():
            raise _damaged(identity, "it is missing")
        if _number(incarnation) > 0:
            raise _damaged(path / "format", "it is missing")
    if not identity.exists():
        fresh = {
            "node_id": secrets.token_hex(NODE_ID_BYTES),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        replace_file(identity, json.dumps(fresh, indent=2).encode() + b"\n")
    else:
        _read_node_id(identity)  # before a format vouches for it
    replace_file(incarnation, b"0\n")
    replace_file(path / "format", f"{FORMAT}\n".encode())


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise _damaged(path, "it is too long")
        return content.decode("ascii")
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except PermissionError as error:
        raise _refuse("read", path, error) from error
    except OSError as error:
        raise _damaged(path, (error.strerror or str(error)).lower()) from error
    except UnicodeDecodeError:
        raise _damaged(path, "it is not text") from None


def _check_format(path: Path) -> None:
    version = _number(path)
    if version > FORMAT:
        raise DiskError(
            "data-folder-version",
            f"the data folder {path.parent} has format {version}, and this version of Regraft "
            f"reads up to {FORMAT}; start the newer version, or name another folder with --data",
        )
    if version < 1:
        raise _damaged(path, "it holds no known format")


def _number(path: Path) -> int:
    text = _read(path)
    digits = text[:-1]
    # The line's end is required: without it 12 cut short would pass for 1.
    if not text.endswith("\n") or not digits.isdecimal() or len(digits) > DIGITS_MAX:
        raise _damaged(path, "it does not hold a whole number and the end of the line")
    return int(digits)


def _read_node_id(path: Path) -> bytes:
    try:
        identity = json.loads(_read(path))
        node_id = bytes.fromhex(identity["node_id"])
        datetime.fromisoformat(identity["created"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, "it is not the JSON that a node writes there") from None
    if len(node_id) != NODE_ID_BYTES:
        raise _damaged(path, f"node_id does not have {2 * NODE_ID_BYTES} digits")
    return node_id


def _damaged(path: Path, reason: str) -> DiskError:
    return DiskError(
        "data-folder-damaged",
        f"{path} cannot be used: {reason}. Restore the data folder from a copy; or, to start as a "
        "new node without its data, move the folder away",
    )


def _refuse(verb: str, path: Path, error: OSError) -> RegraftError:
    reason = (error.strerror or str(error)).lower()
    if error.errno in _YOURS:
        return LocalError(
            "bad-configuration",
            f"cannot {verb} {path}: {reason}; let user {os.geteuid()} {verb} there, "
            "or name another data folder with --data",
        )
    return DiskError(
        "data-folder-damaged", f"cannot {verb} {path}: {reason}; see to the disk and start again"
    )
