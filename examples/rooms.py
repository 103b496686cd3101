"""Sensors in rooms: each has a context, and is asked, or spoken to, by where it is.

Start a node with `regraft serve`, then run this: `python examples/rooms.py`.
"""

import asyncio

import regraft

ROOMS = {"hall": (0, 19.5), "kitchen": (0, 22.0), "attic": (2, 27.5)}  # floor, degrees


async def sensor(room: str, floor: int, degrees: float) -> regraft.Client:
    """A sensor that tells its temperature when it is asked, and shows what is announced."""
    client = await regraft.connect(client_id=f"sensor-{room}")
    await client.set_context({"room": room, "floor": floor})

    async def tell(question: regraft.ReceivedMessage) -> None:
        await question.reply({"room": room, "degrees": degrees})

    await client.subscribe("temperature", replies=True, callback=tell)
    await client.subscribe("announcements")
    return client


async def main() -> None:
    sensors = {room: await sensor(room, *what) for room, what in ROOMS.items()}
    async with await regraft.connect() as panel:
        # Who is warm? All are asked, and it is known when all have replied.
        found = await (await panel.ask("temperature", timeout=5)).all()
        warm = sorted(one.json()["room"] for one in found if one.json()["degrees"] > 20)
        print(f"{len(found)} rooms, all of them: {found.complete}; warm: {', '.join(warm)}")

        # Only those on the ground floor are asked.
        found = await (await panel.ask("temperature", where="ctx.floor = 0", timeout=5)).all()
        print("ground floor:", ", ".join(sorted(one.json()["room"] for one in found)))

        # Somebody carries the sensor of the attic downstairs: what is said there reaches it now.
        await sensors["attic"].set_context({"room": "hall", "floor": 0})
        await panel.publish("announcements", "tea is ready", where="ctx.room = 'hall'")
        for room in ("hall", "attic"):
            message = await sensors[room].next(timeout=5)
            print(f"sensor-{room} hears: {message.text()}")

        # The panel listens to what the kitchen publishes, wherever it publishes it.
        kitchen = await panel.subscribe("#", where="ctx.room = 'kitchen'")
        await sensors["hall"].publish("alarm", "smoke in the hall")
        await sensors["kitchen"].publish("alarm", "the milk boils over")
        print("from the kitchen:", (await kitchen.next(timeout=5)).text())
    for client in sensors.values():
        await client.close()


asyncio.run(main())
