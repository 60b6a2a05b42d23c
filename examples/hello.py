"""Put a message for later, take it when it is due, and say that it is done.

Prints::

    due already: 0
    taken: {'to': 'ann@example.org'} attempt 1
    result: acked
"""

import dwell

with dwell.open("./dwell-data") as queue:
    queue.put("reminders", {"to": "ann@example.org"}, delay="1s")
    print("due already:", len(queue.take("reminders")))
    (message,) = queue.take("reminders", wait="5s")
    print("taken:", message.json(), "attempt", message.attempt)
    print("result:", queue.ack(message))
