"""Callbacks: one answers questions, one keeps count. Questions say where the answer should go."""

import asyncio
from collections import Counter

import regraft

client = regraft.Client()
asked: Counter[str] = Counter()


@client.on("squares")
async def square(question: regraft.ReceivedMessage) -> None:
    number = question.json(int)
    await client.publish(question.reply_to, number**2, correlation=question.correlation)


@client.on("squares", where="$correlation LIKE 'even-%'")
def count(question: regraft.ReceivedMessage) -> None:
    asked["even"] += 1


async def main() -> None:
    async with client:
        async with await client.subscribe("answers/main") as answers:
            for number in (3, 4):
                name = f"even-{number}" if number % 2 == 0 else f"odd-{number}"
                await client.publish("squares", number, reply_to="answers/main", correlation=name)
            for _ in range(2):
                answer = await answers.next(timeout=5)
                print(answer.correlation, answer.json(int))
        print("even questions:", asked["even"])


asyncio.run(main())
