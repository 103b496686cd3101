"""Messages in Apache Spark: their rows, and selectors as columns.

`regraft.pipeline.rows` has the schema, `regraft.pipeline.column` the compiler. Both need the extra
`spark`; nothing else of the package imports this room.
"""
