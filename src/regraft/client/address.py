"""Where the nodes are: addresses, and the logical names that stand for them.

A target is one of

    host, host:port, [v6]:port        an address; regraft:// in front of it may stand or not
    a,b:7448,c                        several, tried in this order
    file:PATH                         one address per line; read again before every attempt
    env:VARIABLE                      a target in an environment variable
    srv:DOMAIN                        DNS SRV records of _regraft._tcp.DOMAIN (extra: srv)
    name:NAME                         REGRAFT_NAME_<NAME>, or the line `NAME = target` of the file
                                      that REGRAFT_NAMES points to, or srv:NAME
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from regraft.errors import LocalError, WorldError

PORT = 7447
NESTING_MAX = 8  # of names that stand for names


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """One address."""
    rest = text.strip().removeprefix("regraft://").rstrip("/")
    if "://" in rest:
        raise _refuse(text, f"{rest.partition('://')[0]} is not spoken here; write host:port")
    host, port = rest, ""
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _refuse(text, "a bracket is not closed")
        port = port[1:]
    elif rest.count(":") == 1:
        host, port = rest.split(":")
    elif rest.count(":") > 1:
        raise _refuse(text, "an IPv6 address stands in brackets, as [::1]:7447")
    if not host or any(c in host for c in " /@?#"):
        raise _refuse(text, "the host is missing, or is none")
    try:
        host.encode("idna")
    except UnicodeError:
        raise _refuse(text, f"{host!r} cannot be the name of a host") from None
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise _refuse(text, f"the port {port!r} is not a number from 1 to 65535")
    return Address(host, int(port or PORT))


def resolve(
    target: str | None, environ: Mapping[str, str] = os.environ, depth: int = 0
) -> list[Address]:
    """The addresses a target stands for now, in the order in which to try them."""
    if depth > NESTING_MAX:
        raise LocalError("bad-configuration", f"{target!r}: names that stand for names, endlessly")
    if target is None:
        target = environ.get("REGRAFT_URL") or f"127.0.0.1:{PORT}"
    scheme, colon, rest = target.strip().partition(":")
    if colon and scheme in SCHEMES:
        return SCHEMES[scheme](rest, environ, depth + 1)
    addresses = [parse_address(part) for part in target.split(",") if part.strip()]
    if not addresses:
        raise _refuse(target, "it names no host")
    return addresses


def _from_file(path: str, environ: Mapping[str, str], depth: int) -> list[Address]:
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(
            "bad-configuration", f"cannot read addresses from {path}: {error}"
        ) from None
    texts = [line.partition("#")[0].strip() for line in lines]
    addresses = [address for text in texts if text for address in resolve(text, environ, depth)]
    if not addresses:
        raise LocalError("bad-configuration", f"{path} holds no address")
    return addresses


def _from_environment(variable: str, environ: Mapping[str, str], depth: int) -> list[Address]:
    target = environ.get(variable)
    if not target:
        raise LocalError("bad-configuration", f"the environment variable {variable} is not set")
    return resolve(target, environ, depth)


def _from_name(name: str, environ: Mapping[str, str], depth: int) -> list[Address]:
    variable = "REGRAFT_NAME_" + name.upper().replace("-", "_").replace(".", "_")
    if environ.get(variable):
        return resolve(environ[variable], environ, depth)
    names = environ.get("REGRAFT_NAMES")
    if names:
        try:
            lines = Path(names).expanduser().read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise LocalError(
                "bad-configuration", f"cannot read names from {names}: {error}"
            ) from None
        for line in lines:
            key, equals, target = line.partition("#")[0].partition("=")
            if equals and key.strip() == name:
                return resolve(target.strip(), environ, depth)
    if "." in name:
        return _from_dns(name, environ, depth)
    raise LocalError(
        "bad-configuration",
        f"the name {name!r} is not known: set {variable}, or put a line `{name} = host:port` into "
        "the file that REGRAFT_NAMES points to",
    )


def _from_dns(domain: str, environ: Mapping[str, str], depth: int) -> list[Address]:
    try:
        import dns.exception
        import dns.resolver
    except ModuleNotFoundError:
        raise LocalError(
            "bad-configuration", "names in DNS need dnspython: pip install 'regraft[srv]'"
        ) from None
    record = f"_regraft._tcp.{domain}"
    try:
        answer = dns.resolver.resolve(record, "SRV", lifetime=5.0)
    except dns.exception.DNSException as error:
        raise WorldError("unreachable", f"no SRV records at {record}: {error}") from None
    rows = sorted((row.priority, -row.weight, str(row.target), row.port) for row in answer)
    return [Address(host.rstrip("."), port) for _, _, host, port in rows]


SCHEMES = {
    "file": _from_file,
    "env": _from_environment,
    "name": _from_name,
    "srv": _from_dns,
}


def _refuse(text: str, why: str) -> LocalError:
    return LocalError("bad-configuration", f"{text!r} is not an address: {why}")
