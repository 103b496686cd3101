"""Says hello to itself over a node: `regraft serve` in another terminal, then run this."""

import asyncio

import regraft


async def main() -> None:
    async with await regraft.connect() as client:
        greetings = await client.subscribe("hello/#", where="loud = TRUE")
        await client.publish("hello/world", "psst", attributes={"loud": False})
        await client.publish("hello/world", "HELLO", attributes={"loud": True})
        message = await greetings.next(timeout=5)
        print(f"{message.topic}: {message.text()}")


asyncio.run(main())
