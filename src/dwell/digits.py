"""Reads numbers from foreign texts."""


def number_of(text: str, digits: int = 18) -> int | None:
    """Return the number in a text of at most ``digits`` ASCII digits, None for any other text.

    Python's ``int`` fails on thousands of digits, and accepts blanks, signs, underscores and the
    digits of other scripts.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None
