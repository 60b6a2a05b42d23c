"""Stores that stand for a broker, each empty when a test gets it."""

from dwell.celery import link
from dwell.celery.names import is_exchange_topic


def emptied(request):
    """Return the URL of the store that a parameter of a fixture names, without messages."""
    kind = request.param
    url = "memory://" if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    shared = link.acquire(url, {})
    try:
        shared.run(_empty, shared.queue)
    finally:
        link.release(shared)
    return url


async def _empty(queue):
    topics = (await queue.stats()).topics
    # The bindings first, so that nothing is put behind.
    for topic in sorted(topics, key=lambda name: not is_exchange_topic(name)):
        await queue.clear(topic)
