"""Spark and real nodes."""
