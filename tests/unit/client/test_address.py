"""Where the nodes are: addresses, lists, and names that stand for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.resolver
import dns.rrset
import pytest

from regraft.client.address import Address, resolve
from regraft.errors import LocalError, WorldError

HERE = Address("127.0.0.1", 7447)


@pytest.mark.parametrize(
    ("target", "addresses"),
    [
        ("h", [Address("h", 7447)]),
        ("h:1", [Address("h", 1)]),
        ("regraft://h:1/", [Address("h", 1)]),
        ("[::1]:5", [Address("::1", 5)]),
        ("[::1]", [Address("::1", 7447)]),
        (" a , b:7448,c", [Address("a", 7447), Address("b", 7448), Address("c", 7447)]),
    ],
)
def test_addresses(target: str, addresses: list[Address]) -> None:
    assert resolve(target, {}) == addresses


@pytest.mark.parametrize(
    "target",
    ["", ",", ":1", "h:", "h:0", "h:65536", "h:x", "::1", "[::1", "a b", "http://h", "u@h"],
)
def test_what_is_no_address(target: str) -> None:
    if target == "h:":  # a port that is not there is the usual one
        assert resolve(target, {}) == [Address("h", 7447)]
        return
    with pytest.raises(LocalError) as caught:
        resolve(target, {})
    assert caught.value.code.name == "bad-configuration"


def test_without_a_target_the_environment_says_or_this_machine() -> None:
    assert resolve(None, {}) == [HERE]
    assert resolve(None, {"REGRAFT_URL": "h:1,g"}) == [Address("h", 1), Address("g", 7447)]


def test_files_and_names(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("# ours\na:1\n\nb:2  # the old one\n")
    assert resolve(f"file:{nodes}", {}) == [Address("a", 1), Address("b", 2)]
    names = tmp_path / "names"
    names.write_text(f"orders = file:{nodes}\nloop = name:loop\n")
    environ = {"REGRAFT_NAMES": str(names), "REGRAFT_NAME_BIG_ONE": "c:3", "X": "name:orders"}
    assert resolve("name:orders", environ) == [Address("a", 1), Address("b", 2)]
    assert resolve("name:big-one", environ) == [Address("c", 3)]
    assert resolve("env:X", environ) == [Address("a", 1), Address("b", 2)]
    for target, text in (
        ("name:unknown", "set REGRAFT_NAME_UNKNOWN"),
        ("name:loop", "endlessly"),
        ("env:NONE", "is not set"),
        (f"file:{tmp_path}/none", "cannot read"),
    ):
        with pytest.raises(LocalError, match=text):
            resolve(target, environ)


@pytest.fixture
def dns_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A name server on loopback that knows one service."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(10)

        def serve() -> None:
            try:
                while True:
                    data, sender = sock.recvfrom(4096)
                    if not data:
                        return
                    query = dns.message.from_wire(data)
                    answer = dns.message.make_response(query)
                    name = query.question[0].name
                    if str(name) == "_regraft._tcp.example.test.":
                        rows = ["20 0 7449 c.test.", "10 1 7448 b.test.", "10 9 7447 a.test."]
                        answer.answer.append(dns.rrset.from_text(name, 60, "IN", "SRV", *rows))
                    else:
                        answer.set_rcode(3)
                    sock.sendto(answer.to_wire(), sender)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = sock.getsockname()[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        yield
        sock.sendto(b"", sock.getsockname())
        thread.join(5)


def test_records_in_dns_by_priority_and_weight(dns_server: None) -> None:
    expected = [Address("a.test", 7447), Address("b.test", 7448), Address("c.test", 7449)]
    assert resolve("srv:example.test", {}) == expected
    assert resolve("name:example.test", {}) == expected
    with pytest.raises(WorldError, match=r"no SRV records at _regraft\._tcp\.other\.test"):
        resolve("srv:other.test", {})
