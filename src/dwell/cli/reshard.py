"""``dwell reshard``: more shards for a store on Redis."""

import asyncio
from typing import Annotated

import typer

from dwell.cli.session import session_of
from dwell.errors import InvalidUrl
from dwell.urls import shown


def reshard(
    context: typer.Context,
    shards: Annotated[int, typer.Argument(metavar="SHARDS", help="How many it is to have.")],
) -> None:
    """Give a store on Redis more shards; stop all its instances first.

    Messages move to the shard of their ids and keys by the new number. Repeat an interrupted run
    with the same number. Current leases end. An ordered topic may have no messages with keys whose
    ids the queue made: they would stay, and be overtaken. Before this, let each relay with
    --exactly-once that was killed run once more: afterwards it sends again what it had not acked.
    """
    session = session_of(context)
    if not session.store.startswith(("redis", "valkey")):
        raise InvalidUrl(f"url: got {shown(session.store)!r:.80}, expected the address of a Redis")
    from dwell.store.redis.resharding import reshard as move

    moved = asyncio.run(move(session.store, shards))
    session.out.confirm(
        {"shards": shards, "moved": moved}, f"{shards} shards; {moved:,} messages have moved"
    )
