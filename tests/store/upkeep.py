"""What a store in a folder does by itself, and its end."""

from dwell.store.embedded import EmbeddedStore
from tests.waiting import until_async


async def end_of_upkeep(store: EmbeddedStore) -> None:
    """Return when it compacts nothing, and has no file to write or to make."""
    core = store.core
    await until_async(
        lambda: core._upkeep is None and not core._flushes and core.journal._making is None
    )
