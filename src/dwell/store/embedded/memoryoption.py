"""How much memory the state of the messages may take: the value of the option."""

from dwell.errors import InvalidSettings
from dwell.store.embedded.limits import Limits


def budget_bytes(memory_bytes: int, limits: Limits) -> int | None:
    """Return the budget in bytes, None for no budget; raises InvalidSettings."""
    if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int):
        raise InvalidSettings(f"memory_bytes: got {memory_bytes!r:.80}, expected a whole number")
    if memory_bytes == 0:
        return None
    if memory_bytes < limits.memory_bytes:
        least = f"at least {limits.memory_bytes}, or 0 for no budget"
        raise InvalidSettings(f"memory_bytes: got {memory_bytes}, expected {least}")
    return memory_bytes
