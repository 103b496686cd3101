"""What a session is set to."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from regraft.pipeline import sessions

SOCKETS = "spark.python.unix.domain.socket.enabled"


class Builder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, object] = {}

    def appName(self, name: str) -> Builder:
        return self

    def master(self, master: str) -> Builder:
        return self

    def config(self, key: str, value: object) -> Builder:
        self.told[key] = value
        return self

    def getOrCreate(self) -> dict[str, object]:
        return self.told


@pytest.fixture(autouse=True)
def builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.SparkSession, "builder", Builder())


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("master", ["local[2]", "spark://there:7077"])
def test_workers_of_this_machine_are_spoken_to_without_tcp(
    master: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    told = sessions._begin("x", master, {})
    assert (SOCKETS in told) == (master == "local[2]" and platform == "linux")


def test_what_is_asked_for_goes_before_our_settings() -> None:
    assert sessions._begin("x", "local", {SOCKETS: "false"})[SOCKETS] == "false"
