"""Celery and kombu: a broker that holds countdowns itself.

::

    import dwell.celery
    from celery import Celery

    app = Celery("shop", broker="dwell+http://localhost:8410")

The import tells kombu of URLs that begin with ``dwell+``; the rest is any URL of
:func:`dwell.open` (``http://``, ``https://``, ``redis://``, ``file:///path`` and ``memory://``). A
task with an ETA or a countdown waits in the store until it is due, and only then do workers get it.
"""

from kombu.transport import TRANSPORT_ALIASES

#: The scheme of a kombu URL, before the ``+``.
SCHEME = "dwell"

_STORES = ("http", "https", "redis", "rediss", "valkey", "valkeys")

# The first of several URLs is cut at its "+", the others are not.
for _name in (SCHEME, *(f"{SCHEME}+{store}" for store in _STORES)):
    TRANSPORT_ALIASES.setdefault(_name, "dwell.celery.transport:Transport")

__all__ = ["SCHEME"]
