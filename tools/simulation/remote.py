"""A queue that another process serves, as a client has it: verbs that travel over the network."""

import random
from collections.abc import Callable
from typing import Any

from dwell.errors import ServerUnreachable, StoreClosed
from dwell.queue import Queue
from tools.simulation.clock import SteppedClock
from tools.simulation.network import Lost, Network

#: How long one request waits for messages; who waits for longer asks again.
_LONGEST_WAIT_S = 5


class RemoteQueue:
    """Has each verb of a queue; one whose reply was lost raises ServerUnreachable."""

    def __init__(self, network: Network, clock: SteppedClock, chance: random.Random) -> None:
        self._network = network
        self._chance = chance
        self.clock = clock

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        async def ask(*given: Any, **options: Any) -> Any:
            if options.get("wait"):
                options["wait"] = _LONGEST_WAIT_S

            async def request(queue: Queue) -> Any:
                return await getattr(queue, verb)(*given, **options)

            try:
                return await self._network.call(request, self._chance, verb, options.get("wait", 0))
            except (Lost, StoreClosed) as error:
                raise ServerUnreachable(f"{verb}: {error}") from None

        return ask
