"""Regraft: a message bus whose tree of brokers re-grafts its branches when they break."""

__version__ = "0.1.0"
