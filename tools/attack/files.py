"""Files: what another user of the machine may read."""

import stat

from tools.attack.attack import Attack, must
from tools.attack.sockets import ask, hammer
from tools.attack.target import TENANT, Target, asked


async def readable(target: Target) -> str:
    """Look for files of the store that somebody else may read or write."""
    put = asked(TENANT, "POST", f"/v1/topics/{TENANT}.t/messages", {"body": "secret"})
    await hammer(target, put)
    await ask(target, put)
    store = target.folder / "store"
    places = [store, *store.rglob("*")]
    for place in places:
        mode = stat.S_IMODE(place.stat().st_mode)
        must(not mode & 0o077, f"{place.relative_to(target.folder)} has mode {mode:o}")
    return f"{len(places)} files are their owner's alone"


ATTACKS = (Attack("files of the store that others may read", readable, needs_folder=True),)
