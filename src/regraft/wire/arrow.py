"""Apache Arrow's form of a batch of rows between processes: one message of its IPC format.

     0            4       8                     8 + size
     +------------+-------+----------------------+------------------------------+
     | 0xFFFFFFFF | size  | metadata, FlatBuffer | buffers, each padded to 8    |
     +------------+-------+----------------------+------------------------------+

The metadata of a record batch has the same shape whatever the columns are: two tables, a vector of
nodes (rows and NULLs of each column), a vector of buffers (where each begins, and its length). So
it is written here, and no library is needed. A reader knows the schema, because it chose the
columns; `END` stands behind the last message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

END = struct.pack("<II", 0xFFFFFFFF, 0)

_HEAD = struct.Struct("<II")
_PAIR = struct.Struct("<qq")
_COUNT = struct.Struct("<I")
_PADDING = tuple(bytes(size) for size in range(8))

# Offsets in the metadata: a table of type Message at 16, one of type RecordBatch at 52, each behind
# the list of where its fields are; then the vectors.
_MESSAGE = struct.Struct("<I HHHHHH iIqhBxxxxx")  # its header is the other table
_BATCH = struct.Struct("<HHHHHxx iqII")
_VERSION = 4  # of the metadata: Arrow calls it V5
_RECORD_BATCH = 3  # a kind of message
_NODES = 76


def record_batch(
    rows: int,
    nodes: Sequence[tuple[int, int]],
    buffers: Sequence[bytes | memoryview],
) -> list[bytes | memoryview]:
    """A record batch in pieces, to be written one behind the other."""
    body: list[bytes | memoryview] = []
    places: list[bytes] = []
    at = 0
    for buffer in buffers:
        size = len(buffer)
        places.append(_PAIR.pack(at, size))
        body.append(buffer)
        at += size
        if at % 8:
            body.append(_PADDING[-at % 8])
            at += -at % 8
    end = _NODES + 4 + 16 * len(nodes)
    metadata = b"".join(
        (
            _MESSAGE.pack(16, 12, 24, 16, 18, 4, 8, 12, 32, at, _VERSION, _RECORD_BATCH),
            _BATCH.pack(10, 20, 4, 12, 16, 12, rows, _NODES - 64, end + 4 - 68),
            bytes(4),
            _COUNT.pack(len(nodes)),
            *(_PAIR.pack(*node) for node in nodes),
            bytes(4),
            _COUNT.pack(len(buffers)),
            *places,
        )
    )
    return [_HEAD.pack(0xFFFFFFFF, len(metadata)) + metadata, *body]
