"""The files of the console, as they are served: nothing is made of them first."""

from functools import cache
from pathlib import PurePath

#: The form of each kind of file that the folder has for browsers.
_FORMS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: The index file of the folder.
INDEX = "index.html"


@cache
def pages() -> dict[str, tuple[bytes, str]]:
    """Return the bytes and the form of every file, by its name."""
    # Loaded with the first page, as a server that was killed is to be back soon.
    from importlib.resources import files

    found = {}
    for file in files(__package__).iterdir():
        form = _FORMS.get(PurePath(file.name).suffix)
        if form is not None:
            found[file.name] = file.read_bytes(), form
    return found
