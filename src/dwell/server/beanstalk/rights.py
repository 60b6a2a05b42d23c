"""Rights: the rights that a caller without a token needs for each command, on its topic."""

from dwell.server.beanstalk.commands import Verb
from dwell.server.tokens import ANY, Right

_LOOKING = (Right.READ, Right.ADMIN)

#: The rights for each command, any one of them; a command that is absent needs none.
RIGHTS: dict[Verb, tuple[Right, ...]] = {
    Verb.PUT: (Right.PUT,),
    Verb.USE: ANY,
    Verb.WATCH: (Right.TAKE,),
    Verb.RESERVE: (Right.TAKE,),
    Verb.RESERVE_WITH_TIMEOUT: (Right.TAKE,),
    Verb.RESERVE_JOB: (Right.TAKE,),
    Verb.DELETE: (Right.PUT,),
    Verb.PEEK: (Right.PUT, Right.READ),
    Verb.PEEK_READY: (Right.TAKE, Right.READ),
    Verb.PEEK_DELAYED: _LOOKING,
    Verb.PEEK_BURIED: _LOOKING,
    Verb.KICK: (Right.ADMIN,),
    Verb.KICK_JOB: (Right.ADMIN,),
    Verb.STATS: _LOOKING,
    Verb.STATS_JOB: (Right.PUT, Right.READ),
    Verb.STATS_TUBE: _LOOKING,
    Verb.LIST_TUBES: _LOOKING,
    Verb.PAUSE_TUBE: (Right.ADMIN,),
}
