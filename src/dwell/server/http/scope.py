"""Scopes: on which topics an endpoint needs its rights."""

from enum import StrEnum


class Scope(StrEnum):
    """On which topics a caller has to have the right; the value is how the docs say it."""

    TOPIC = "the topic of the path"
    #: The topics are in the body, so the handler checks them.
    NAMED = "the topics that the request names"
    ALL = "all topics"
    #: The answer or change is limited to topics that the caller has the right to.
    OWN = "any topic"
    SCHEDULES = "`dwell:schedules`"
