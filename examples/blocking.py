"""The same bus without asyncio: numbers go out in one call and come back in batches."""

import regraft

COUNT = 1000

with regraft.connect_blocking() as client:
    with client.subscribe("numbers") as numbers:
        client.publish_many("numbers", range(COUNT), confirm=True)
        total = received = 0
        for batch in numbers.batches():
            total += sum(message.json(int) for message in batch)
            received += len(batch)
            if received == COUNT:
                break
    print(f"{received} numbers, {total} in all")
