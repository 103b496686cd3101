"""The same as orders_sqlite.py with PostgreSQL, which can prepare transactions itself.

    1. the bus prepares its part      2. PostgreSQL prepares its own (PREPARE TRANSACTION)
    3. COMMIT PREPARED: the decision  4. the bus commits

What PostgreSQL has committed it shows: each transaction inserts its own name. A program that was
killed rolls back what PostgreSQL has only prepared, and then does at the bus what PostgreSQL did.
PostgreSQL needs max_prepared_transactions above 0, and this needs psycopg.

    python examples/orders_postgres.py "dbname=shop"
"""

import asyncio
import sys
import uuid

import psycopg

import regraft

NAME = "orders-postgres"


def open_database(target: str) -> psycopg.Connection:
    database = psycopg.connect(target, autocommit=True)  # we say BEGIN ourselves
    database.execute("CREATE TABLE IF NOT EXISTS orders (item text, amount integer)")
    database.execute("CREATE TABLE IF NOT EXISTS decided (gid text PRIMARY KEY)")
    return database


async def recover(client: regraft.Client, database: psycopg.Connection) -> None:
    """Finish what was in doubt, on both sides."""
    prepared = database.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", [f"{NAME}%"]
    ).fetchall()
    for (gid,) in prepared:  # nobody has decided: nothing of it counts
        database.execute(f"ROLLBACK PREPARED '{gid}'")
        print(f"{gid} was prepared in PostgreSQL: rolled back")
    for row in await client.in_doubt():
        gid = row["gid"]
        if gid.startswith(NAME):
            found = database.execute("SELECT 1 FROM decided WHERE gid = %s", [gid]).fetchone()
            ended = await client.decide(gid, found is not None)
            print(f"{gid} was in doubt: {ended}")


async def bill(
    client: regraft.Client, database: psycopg.Connection, order: regraft.ReceivedMessage
) -> None:
    """Deal with one order."""
    content = order.json(dict)
    gid = f"{NAME}-{uuid.uuid4()}"  # of no characters that would need quoting
    async with client.transaction() as tx:
        await order.accept()
        await tx.publish("bills", f"{content['amount']} of {content['item']}")
        await tx.prepare(gid)
        database.execute("BEGIN")
        database.execute("INSERT INTO orders VALUES (%s, %s)", [content["item"], content["amount"]])
        database.execute("INSERT INTO decided VALUES (%s)", [gid])
        database.execute(f"PREPARE TRANSACTION '{gid}'")
        database.execute(f"COMMIT PREPARED '{gid}'")  # from here on it is decided
    database.execute("DELETE FROM decided WHERE gid = %s", [gid])  # the bus knows, too


async def main(target: str) -> None:
    database = open_database(target)
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
        found = database.execute("SELECT count(*) FROM orders").fetchone()
        print(f"{found[0] if found else 0} orders")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
