"""URLs of stores, as messages and logs may show them."""

import re

# To the last @, since a password that was not quoted as it should be may hold anything.
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)//.*@", re.DOTALL)


def shown(url: str) -> str:
    """Return a URL without the user and the password in it; a path stays as it is."""
    login = _LOGIN.match(url)
    return url if login is None else f"{login[1]}//***@{url[login.end() :]}"
