"""Messages in Apache Spark: streams as tables, tables as messages, selectors as columns.

    spark = regraft.pipeline.session()
    spark.readStream.format("regraft").option("subscribe", "orders")...
    frame.where(regraft.pipeline.column("price > 100 AND symbol = 'ACME'"))

It needs the extra `spark`; nothing else of the package imports this room but a command. The names
here are imported when they are used, so that Spark's workers need not have all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def session(
    name: str = "regraft", master: str | None = None, config: dict[str, Any] | None = None
) -> SparkSession:
    """A Spark session in which `format("regraft")` works: see `regraft.pipeline.sessions`."""
    from regraft.pipeline.sessions import make

    return make(name, master, config)


def column(selector: str, **names: Any) -> Column:
    """A selector as a column: true, false or NULL, as a node would say.

    `names` are those of `regraft.pipeline.selecting.column_of`: what columns are called.
    """
    from regraft.model.selector import Selector
    from regraft.pipeline.selecting import column_of

    return column_of(Selector.parse(selector), **names)
