"""Follow-ups of acks: what every store says of one that it refuses."""

from dwell.batch.puts import Puts
from dwell.errors import InvalidInput


def check_id(then: Puts, topic: str, id_: str) -> None:
    """Refuse a follow-up with topic and id of the acked message; raises InvalidInput."""
    if then.topic == topic and then.ids is not None and then.ids[0] == id_.encode():
        raise its_own_id(then)


def its_own_id(then: Puts) -> InvalidInput:
    """Return the error for a follow-up with topic and id of the message that is acked.

    That message would keep it out, and the chain would end without a word.
    """
    id_ = b"" if then.ids is None else then.ids[0]
    return InvalidInput(
        f"then.id: got {id_.decode()!r:.80}, expected none of its own message in {then.topic!r}"
    )
