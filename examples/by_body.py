"""Find messages by what is said of them, take some, move some, and clear the topic.

Prints::

    large: ['b', 'd']
    taken: ['b']
    in Rome, later: ['c']
    moved: {'moved': 1}
    cleared: 3, left: ['b']
"""

import asyncio

import dwell


async def main() -> None:
    """Look at four orders, pack one of them, and put one off."""
    async with dwell.open("memory:") as queue:
        orders = [
            {"city": "Oslo", "total": 20},
            {"city": "Rome", "total": 80},
            {"city": "Rome", "total": 35},
            {"city": "Rome", "total": 99},
        ]
        due = [1_000, 2_000, 4_000_000_000_000, 3_000]
        keys = ["ann", "bob", "ann", "bob"]
        await queue.put_many("orders", orders, ids=list("abcd"), due=due, key=keys)

        large = await queue.find("orders", "total > `50`")
        print("large:", list(large.ids))
        batch = await queue.take_where("orders", "city == 'Rome'", 1, lease="5m")
        print("taken:", list(batch.ids))
        later = await queue.find("orders", "city == 'Rome'", state="delayed")
        print("in Rome, later:", list(later.ids))

        bobs = dwell.select("city == 'Rome'", key="bob", attempt_to=1)
        changed = await queue.reschedule_where("orders", bobs, shift="1h")
        print("moved:", {str(result): count for result, count in changed.results.items()})

        count = await queue.clear("orders")
        left = await queue.scan("orders", "leased")
        print(f"cleared: {count}, left: {list(left.messages.ids)}")


asyncio.run(main())
