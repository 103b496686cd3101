"""The only list of the protocols that a port speaks, and how a connection shows which it is.

Rules:

- A protocol is known by the first bytes that its client sends. No preface begins another.
- Until the bytes can be told apart, the answer is "more". It takes at most `PREFACE_BYTES_MAX`
  bytes, so a node need not keep more than those.
"""

from __future__ import annotations

from regraft.errors import PeerError
from regraft.wire import native

PROTOCOLS: dict[str, bytes] = {
    "native": native.PREFACE,
}

_HTTP = "this is a Regraft port, not HTTP; connect to it with a Regraft client"
_TLS = "this is a Regraft port without TLS; connect without TLS, or to the port that has it"

# What people send here by mistake, and what to tell them.
_MISTAKES: dict[bytes, str] = {
    b"GET ": _HTTP,
    b"POST ": _HTTP,
    b"PUT ": _HTTP,
    b"HEAD ": _HTTP,
    b"DELETE ": _HTTP,
    b"OPTIONS ": _HTTP,
    b"PATCH ": _HTTP,
    b"CONNECT ": _HTTP,
    b"PRI * ": _HTTP,
    b"\x16\x03": _TLS,
}

PREFACE_BYTES_MAX = max(map(len, [*PROTOCOLS.values(), *_MISTAKES]))


def detect(first_bytes: bytes) -> str | None:
    """Name the protocol of a connection that begins so; None asks for more bytes."""
    for name, preface in PROTOCOLS.items():
        if first_bytes.startswith(preface):
            return name
    for mistake, advice in _MISTAKES.items():
        if first_bytes.startswith(mistake):
            raise PeerError("unknown-protocol", advice)
    for beginning in (*PROTOCOLS.values(), *_MISTAKES):
        if beginning.startswith(first_bytes):
            return None
    seen = first_bytes[:PREFACE_BYTES_MAX].hex(" ")
    spoken = ", ".join(PROTOCOLS)
    raise PeerError(
        "unknown-protocol",
        f"the connection begins with {seen}, which is none of the protocols here: {spoken}",
    )
