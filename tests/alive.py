"""What a test leaves in memory, and not what others in the same process did."""

import gc
from collections.abc import Callable


def newcomers(*kinds: type) -> Callable[[], list[object]]:
    """Return a function that lists the objects of these types which are in memory since now.

    Nothing collects garbage here. What is there already is kept, so that no address comes twice.
    """
    known = {id(one): one for one in _alive(kinds)}
    return lambda: [one for one in _alive(kinds) if id(one) not in known]


def _alive(kinds: tuple[type, ...]) -> list[object]:
    # By type(): isinstance() asks a proxy in the heap for the class it stands for, and the lazy
    # settings of Django raise there.
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]
