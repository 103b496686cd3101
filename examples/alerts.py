"""News alerts: each reader leaves keywords, and gets the headlines in which they stand.

Keywords become a selector, so it is the node that looks for them: what nobody searches for goes to
nobody. Start a node with `regraft serve`, then run this: `python examples/alerts.py`.
"""

import asyncio
import re

import regraft

READERS = {
    "anna": ["Spark", "Python"],
    "ben": ["ship*"],  # ships, shipping, ...
    "cleo": ["storm", "flood", "it's raining"],
}
HEADLINES = [
    ("tech", 4, "Python and Spark: a love story"),
    ("tech", 4, "A spark of hope for start-ups"),
    ("trade", 4, "Shipping is cheaper than ever"),
    ("trade", 9, "STORM closes harbour, ships wait"),
    ("sports", 4, "Friendship wins, again"),  # a ship, but not at the start of a word
    ("weather", 9, "Get home, IT'S RAINING cats and dogs"),
]


def alert(keywords: list[str]) -> str:
    """The selector for headlines with one of these words; `*` at the end is any ending."""
    words = [re.escape(word.removesuffix("*")) + r"\w*" * word.endswith("*") for word in keywords]
    pattern = rf"(?i)\b({'|'.join(words)})\b".replace("'", "''")
    return f"headline REGEXP '{pattern}'"


async def main() -> None:
    alerts = {}
    for reader, keywords in READERS.items():
        client = await regraft.connect(client_id=reader)
        alerts[client] = await client.subscribe("news/#", where=alert(keywords))
    async with await regraft.connect(client_id="editor") as editor:
        alerts[editor] = await editor.subscribe("news/#", where="$priority >= 7")
        for section, priority, headline in HEADLINES:
            attributes = {"headline": headline}
            await editor.publish(f"news/{section}", attributes=attributes, priority=priority)
        await editor.flush()  # the node has dealt with all of them
        for client, headlines in alerts.items():
            await client.inspect()  # what it was sent before the answer to this is here
            got = [await headlines.next() for _ in range(headlines.pending())]
            print(f"{client.client_id}: {' | '.join(one.attributes['headline'] for one in got)}")
            await client.close()


asyncio.run(main())
