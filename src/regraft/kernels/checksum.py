"""CRC-32C (Castagnoli), the checksum of envelopes, transfer headers and journal records.

Compiled, the work is done by `crc32c.h`: the processor's own instruction where there is one, tables
where there is none. Interpreted, by the table loop below.

Another kernel writes, in its `.pxd`,

    from regraft.kernels.checksum cimport crc32c_at

and in its `.py`

    if not cython.compiled:
        from regraft.kernels.checksum import crc32c_at
"""

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    POLYNOMIAL = 0x82F63B78  # reflected

    def make_table() -> tuple[int, ...]:
        """The remainder of every byte."""
        table = []
        for byte in range(256):
            for _ in range(8):
                byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
            table.append(byte)
        return tuple(table)

    TABLE = make_table()

    def pointer_to(data: bytes | bytearray | memoryview) -> memoryview:
        """What `data` is scanned through: a pointer when compiled, a view when not."""
        return memoryview(data)

    def table_more(value: int, p: bytes | memoryview, start: int, end: int) -> int:
        """The checksum of what had `value`, followed by p[start:end]."""
        table = TABLE
        value ^= 0xFFFFFFFF
        for byte in p[start:end]:
            value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
        return value ^ 0xFFFFFFFF

    crc32c_more = table_more

    def crc32c_at(p: bytes | memoryview, start: int, end: int) -> int:
        """The checksum of p[start:end]."""
        return table_more(0, p, start, end)


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The checksum of `data`; with `value`, of what had that checksum followed by `data`."""
    return crc32c_more(value, pointer_to(data), 0, len(data))


def crc32c_portable(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The same by tables even where the processor has an instruction for it, to compare the two."""
    return table_more(value, pointer_to(data), 0, len(data))
