"""The beanstalk protocol over a queue, so that its clients work unchanged.

From the outside in: the port has the sockets, a session is one connection, the decoder reads its
commands, and the desk runs them. The commands of many connections in one turn of the event loop
form a round: one call of the queue.
"""

from dwell.server.beanstalk.port import BeanstalkPort

__all__ = ["BeanstalkPort"]
