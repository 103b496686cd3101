"""Tables and batches over the wire, with a real node: no Spark, so that it is fast."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from regraft.errors import RegraftError
from regraft.kernels.outbox import Outbox
from regraft.pipeline.link import Link
from regraft.wire import bulk, native, peers
from spark.serving import Served, orders

KILLS = 5
COLUMNS = [("sequence", "bigint"), ("body", "binary"), ("n", "bigint")]
SCHEMA = pa.schema([("sequence", pa.int64()), ("body", pa.binary()), ("n", pa.int64())])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("node"))
    served.publish(orders(0, 5000))
    yield served
    served.kill()


def table(node: Served, stream: str = "orders", **more: Any) -> tuple[list[Any], bulk.Scanned]:
    with Link(node.url) as link:
        request = bulk.Read("", stream, COLUMNS, **more)
        rows = [row for batch in link.read(request, SCHEMA) for row in batch.to_pylist()]
        return rows, link.scanned


def frames(batch: int, start: int, count: int, topic: bytes = b"copies/x") -> bytes:
    outbox = Outbox(1 << 20, 1)
    outbox.persistent = True
    outbox.sequence = batch << 32
    for n in range(start, start + count):
        outbox.put(topic, b"%d" % n, {"n": n}, 0, True, b"")
    return outbox.take()


def stage(node: Served, sink: str, batch: int, part: int, attempt: str, data: bytes) -> Any:
    with Link(node.url) as link:
        link.stage(bulk.Stage(sink, batch, part, attempt))
        link.send(data)
        done = link.staged()
    return part, attempt, done.size, done.messages


def test_ranges_in_any_order(node: Served) -> None:
    source = random.Random(3)
    for _ in range(12):
        start = source.randrange(1, 5000)
        end = source.randrange(start, 5001)
        rows, scanned = table(node, start=start, end=end)
        assert [row["sequence"] for row in rows] == list(range(start, end))
        assert [row["n"] for row in rows] == [int(row["body"]) for row in rows]
        assert (scanned.next, scanned.scanned, scanned.rows) == (end, end - start, end - start)


def test_no_batch_is_large(node: Served) -> None:
    with Link(node.url) as link:
        request = bulk.Read("", "orders", COLUMNS, start=1, end=5001)
        sizes = [batch.num_rows for batch in link.read(request, SCHEMA)]
    assert sum(sizes) == 5000
    assert max(sizes) <= 4096  # who is live waits while one is handed on


def test_a_selector_is_evaluated_by_the_node(node: Served) -> None:
    rows, scanned = table(node, start=1, end=5001, selector="symbol = 'S3' AND price > 100")
    assert rows
    assert {row["n"] % 11 for row in rows} == {3}
    assert scanned.scanned == 5000


def test_all_that_is_asked_for_at_the_same_time(node: Served) -> None:
    results: list[int] = []

    def read() -> None:
        results.append(len(table(node, start=1, end=5001)[0]))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [5000] * 8


def test_a_client_that_goes_away_in_the_middle_disturbs_nobody(node: Served) -> None:
    for _ in range(5):
        with Link(node.url) as link:
            link._command("read", bulk.Read("", "orders", COLUMNS, start=1, end=5001), dict)
    assert len(table(node, start=1, end=5001)[0]) == 5000


def test_the_process_beside_the_node_can_die(node: Served) -> None:
    def children() -> set[int]:
        assert node.popen is not None
        path = Path(f"/proc/{node.popen.pid}/task/{node.popen.pid}/children")
        return {int(child) for child in path.read_text().split()}

    table(node, start=1, end=2)
    (before,) = children()
    os.kill(before, signal.SIGKILL)
    for _ in range(50):  # the first may still reach the dead one
        with contextlib.suppress(RegraftError):
            assert len(table(node, start=1, end=5001)[0]) == 5000
            break
        time.sleep(0.05)
    assert children() != {before}


def test_batches_are_seen_when_they_are_committed(node: Served) -> None:
    begun = node.next("copies")
    parts = [stage(node, "one", 0, part, "a", frames(0, 100 * part, 100)) for part in range(3)]
    assert node.next("copies") == begun
    with Link(node.url) as link:
        assert link.commit(bulk.Parts("one", 0, parts)) == bulk.Committed(300, False)
        assert link.commit(bulk.Parts("one", 0, parts)) == bulk.Committed(0, True)
    rows, _ = table(node, "copies", start=begun, end=begun + 300)
    assert sorted(row["n"] for row in rows) == list(range(300))
    assert node.next("copies") == begun + 300
    node.wait_until_nothing_is_staged()


def test_what_is_wrong_with_a_message_is_told_before_it_is_promised(node: Served) -> None:
    for data, text in (
        (frames(0, 0, 3, b"a/#"), "only a pattern may"),
        (frames(0, 0, 3) + frames(0, 0, 3), "follows"),
        (frames(0, 0, 3)[:-1] + b"?", "damaged"),
        (b"\x00" * 40, "header"),
    ):
        with Link(node.url) as link:
            link.stage(bulk.Stage("bad", 0, 0, "a"))
            with pytest.raises(RegraftError, match=text):
                link.send(data)
                link.staged()
        node.wait_until_nothing_is_staged()


def test_what_is_staged_by_one_who_dies_is_gone(node: Served) -> None:
    with Link(node.url) as link:
        link.stage(bulk.Stage("dead", 0, 0, "a"))
        link.send(frames(0, 0, 100))
    node.wait_until_nothing_is_staged()


def test_the_same_attempt_is_staged_once(node: Served) -> None:
    part = stage(node, "twice", 0, 0, "a", frames(0, 0, 1))
    with Link(node.url) as link, pytest.raises(RegraftError, match="staged already"):
        link.stage(bulk.Stage("twice", 0, 0, "a"))
    with Link(node.url) as link:
        link.abort(bulk.Parts("twice", 0, [part]))


def test_only_the_last_word_may_follow_messages(node: Served) -> None:
    with Link(node.url) as link:
        link.stage(bulk.Stage("odd", 0, 0, "a"))
        link._sock.sendall(native.encode(peers.Command(1, "streams", b"{}")))
        with pytest.raises(RegraftError, match="not allowed here"):
            link._expect(peers.Done)


def test_retention_makes_positions_expire(tmp_path: Path) -> None:
    node = Served(tmp_path, keep_bytes=100_000, segment_bytes=65_536, frame_bytes=16_384,
                  control_frame_bytes=16_384)  # fmt: skip
    try:
        node.publish(orders(0, 8000))
        deadline = time.monotonic() + 60
        before = 1
        while True:  # segments go about once a second
            with Link(node.url) as link:
                (row,) = [row for row in link.streams().streams if row.name == "orders"]
            if row.first == before > 1:
                break
            assert time.monotonic() < deadline
            before = row.first
            time.sleep(3)
        with pytest.raises(RegraftError, match="is kept from sequence") as caught:
            table(node, start=1, end=10)
        assert caught.value.code.name == "position-expired"
        rows, scanned = table(node, start=row.first, end=row.next)
        assert scanned.scanned == row.next - row.first == len(rows)
    finally:
        node.kill()


@pytest.mark.parametrize("seed", range(2))
def test_a_node_killed_while_batches_are_committed(tmp_path: Path, seed: int) -> None:
    """Each batch is committed until it is answered; in the end all is there, once."""
    source = random.Random(seed)
    node = Served(tmp_path / str(seed))
    stop = threading.Event()
    kills = batches = 0

    def torment() -> None:
        nonlocal kills
        while kills < KILLS and not stop.wait(source.uniform(0.1, 0.8)):
            node.restart()
            kills += 1

    thread = threading.Thread(target=torment)
    thread.start()
    try:
        while batches < 8 or kills < KILLS:  # a fast machine commits many meanwhile
            while True:
                batch = batches
                attempt = f"{source.getrandbits(64):x}"
                try:
                    parts = [
                        stage(node, "q", batch, part, attempt, frames(batch, 1500 * k, 1500))
                        for part, k in enumerate((2 * batch, 2 * batch + 1))
                    ]
                    with Link(node.url) as link:
                        link.commit(bulk.Parts("q", batch, parts))
                    break
                except RegraftError:
                    time.sleep(0.02)
            batches += 1
    finally:
        stop.set()
        thread.join()
    node.restart()
    rows, _ = table(node, "copies", start=1, end=node.next("copies"))
    node.kill()
    assert sorted(row["n"] for row in rows) == list(range(batches * 3000))
    print(f"{kills} kills, {len(rows)} rows, none twice")
