"""Numbers that others write as digits."""


def number_of(text: str, digits: int = 18) -> int | None:
    """Return the number that a text of ASCII digits writes, None if it is anything else.

    One with more than ``digits`` digits is none: Python does not read numbers of thousands of
    digits. Blanks, signs, underscores and the digits of other scripts, which it reads, are none.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None
