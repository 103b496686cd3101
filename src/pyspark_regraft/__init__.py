"""Where Spark looks for `format("regraft")`: a package whose name begins with pyspark_.

Spark imports all of these to find out what they are called, so that nothing else is imported until
the source or the sink is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from regraft.pipeline.source import Stream


class DefaultSource(DataSource):
    """Messages of a node as rows, and rows as messages."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return "regraft"

    def schema(self) -> StructType:
        """The columns, unless `.schema(...)` says others."""
        from regraft.pipeline.options import Options
        from regraft.pipeline.rows import table_schema

        return table_schema(Options.read(self.options).headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from regraft.pipeline.options import Options
        from regraft.pipeline.source import Batch, PushingBatch

        options = Options.read(self.options)
        return (PushingBatch if options.pushdown else Batch)(schema, options)

    def streamReader(self, schema: StructType) -> Stream:
        """For `spark.readStream`."""
        from regraft.pipeline.options import Options
        from regraft.pipeline.source import Stream

        return Stream(schema, Options.read(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `DataFrame.write`."""
        from regraft.pipeline.sink import BatchSink

        return BatchSink(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For `DataFrame.writeStream`."""
        from regraft.pipeline.sink import StreamSink

        return StreamSink(schema, self.options)
