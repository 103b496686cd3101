"""Filters of applications that a node is to know: code that its operator installed or named.

`[project.entry-points."regraft.filters"]` of an installed package names classes; the setting
`filters` names modules, or classes in them. Nothing else is imported, whatever others say.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from regraft.errors import LocalError
from regraft.model.userfilter import REGISTERED, FilterTable, register_filter

GROUP = "regraft.filters"
log = logging.getLogger("regraft.node")


def load_filters(named: Iterable[str], installed: Iterable[Any] | None = None) -> FilterTable:
    """Import them; what is named and cannot be had is a LocalError."""
    for entry in metadata.entry_points(group=GROUP) if installed is None else installed:
        try:
            register_filter(entry.name, entry.load())
        except Exception as error:  # a node that does not know a filter lets everything pass
            log.error("filter %s of an installed package cannot be had: %s", entry.name, error)
    for name in named:
        _load(name)
    return REGISTERED


def _load(name: str) -> None:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
    except Exception as error:  # anything may happen while somebody's module is imported
        text = f"filters: {name} cannot be had: {type(error).__name__}: {error}"
        raise LocalError("bad-configuration", text) from error
    known = REGISTERED.classes.values()
    if path and not any(found is one for one in known):
        text = 'is not registered: put @regraft.filter("a-name") in front of it'
        raise LocalError("bad-configuration", f"filters: {name} {text}")
    if not path and not any(one.__module__ == module for one in known):
        text = "registers no filter: put @regraft.filter(...) in front of a class there"
        raise LocalError("bad-configuration", f"filters: module {name} {text}")
