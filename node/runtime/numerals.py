"""Numbers in texts that clients and people write."""

DIGITS_MAX = 19  # of a signed 64-bit number


def number_of(text: str, most: int) -> int | None:
    """A number from 0 to most in plain digits; None where the text is none.

    Python alone would also read other alphabets' digits, and very long numbers slowly.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= most else None
