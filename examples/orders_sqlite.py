"""Orders from a queue, rows in SQLite, bills to another queue: all three, or none, come what may.

Two phases. The bus prepares its part. Then SQLite commits its own, and with the rows the fact that
this transaction is to be committed: that is the decision. Then the bus is told. A program that was
killed in between looks, when it starts again, what SQLite says of each transaction in doubt.

    python examples/orders_sqlite.py orders.db
"""

import asyncio
import sqlite3
import sys
import uuid

import regraft

NAME = "orders-sqlite"  # the names of its transactions begin so


def open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)  # we say BEGIN and COMMIT ourselves
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT, amount INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS decided (gid TEXT PRIMARY KEY)")
    return database


async def recover(client: regraft.Client, database: sqlite3.Connection) -> None:
    """Finish what was in doubt when this program ended: the database knows the decision."""
    for row in await client.in_doubt():
        gid = row["gid"]
        if gid.startswith(NAME):
            found = database.execute("SELECT 1 FROM decided WHERE gid = ?", [gid]).fetchone()
            ended = await client.decide(gid, found is not None)
            print(f"{gid} was in doubt: {ended}")


async def bill(
    client: regraft.Client, database: sqlite3.Connection, order: regraft.ReceivedMessage
) -> None:
    """Deal with one order."""
    content = order.json(dict)
    gid = f"{NAME}-{uuid.uuid4()}"
    async with client.transaction() as tx:
        await order.accept()
        await tx.publish("bills", f"{content['amount']} of {content['item']}")
        await tx.prepare(gid)
        database.execute("BEGIN")
        database.execute("INSERT INTO orders VALUES (?, ?)", [content["item"], content["amount"]])
        database.execute("INSERT INTO decided VALUES (?)", [gid])
        database.execute("COMMIT")  # from here on it is decided
    database.execute("DELETE FROM decided WHERE gid = ?", [gid])  # the bus knows, too


async def main(path: str) -> None:
    database = open_database(path)
    async with await regraft.connect() as client:
        await client.create_queue("orders")
        await client.create_queue("bills")
        await recover(client, database)
        async with client.queue("orders") as orders:
            while True:
                try:
                    order = await orders.next(timeout=1)
                except regraft.WorldError:
                    break  # no more for now
                await bill(client, database, order)
        (count,) = database.execute("SELECT count(*) FROM orders").fetchone()
        print(f"{count} orders")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
