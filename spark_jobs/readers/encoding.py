"""From bytes to text: UTF-8 where it is, else what a byte order mark, a header, the page or the bytes say.

Detection is resiliparse's uchardet: it comes with the HTML extraction, knows the web's encodings, and named
every sample of a sentence or more (cp1250, cp1251, cp1252, koi8-r, shift_jis, gb18030) rightly where
charset-normalizer took cp1252 for cp1250, in a hundredth of its time.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SAMPLE = 1 << 16
ESCAPE = b"\x1b"
"""Begins the shifts of ISO-2022, which are ASCII and so would pass for UTF-8."""
LEADS = bytes(range(0xC0, 0x100))
CONTINUATIONS = bytes(range(0x80, 0xC0))
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))


SLICE = 1 << 20
"""Of longer texts no more than this is a string at a time: one odd character makes it four bytes for each."""


class Text(NamedTuple):
    """Decoded text."""

    utf8: bytes
    encoding: str = "utf-8"
    """Python's name of what it was in."""
    replaced: int = 0
    """Bytes or sequences that are none in that encoding, now U+FFFD each."""


class NotTextError(ValueError):
    """Bytes that are no text in any encoding."""


def by_mark(data: bytes) -> tuple[str, int] | None:
    """The encoding that a byte order mark names, and the mark's length."""
    return next(((name, len(mark)) for mark, name in BOMS if data.startswith(mark)), None)


def decode(data: bytes, declared: str | None = None, markup: bool = False) -> Text:
    """`data` as text.

    In order: a byte order mark; UTF-8; UTF-16 without a mark; UTF-8 with a few broken sequences; `declared`
    (of an HTTP header); the charset that a page declares, when it is `markup`; detection.

    Raises:
        NotTextError: control characters make up over a tenth: pictures, archives, programs.
    """
    if marked := by_mark(data):
        return _replacing(data[marked[1] :], marked[0])
    unmarked = _utf16_without_mark(data)
    if not unmarked and (ESCAPE not in data or not (declared or markup)):
        if is_utf8(data):
            return Text(data)
        if nearly := _nearly_utf8(data):
            return nearly
    for encoding in (unmarked, *_declared(data, declared, markup)):
        if encoding and (found := _strictly(data, encoding)):
            return _checked(found)
    return _checked(_detected(data))


def utf8(text: str) -> bytes:
    """A string as UTF-8; of a long one no second copy at four bytes a character is made.

    Raises:
        UnicodeEncodeError: lone surrogates.
    """
    if len(text) <= SLICE:
        return text.encode()
    encoded = bytearray()
    for start in range(0, len(text), SLICE):
        encoded += text[start : start + SLICE].encode()
    return bytes(encoded)


def is_utf8(data: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), SLICE):
            decoder.decode(data[start : start + SLICE], start + SLICE >= len(data))
    except UnicodeDecodeError:
        return False
    return True


def _nearly_utf8(data: bytes) -> Text | None:
    """UTF-8 with broken sequences replaced, when there are three good ones or more for each of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    encoded = bytearray()
    replaced = good = 0
    for start in range(0, len(data), SLICE):
        piece = decoder.decode(data[start : start + SLICE], start + SLICE >= len(data))
        added = piece.encode()
        encoded += added
        replaced += piece.count("\ufffd")
        good += len(added) - len(added.translate(None, LEADS)) - piece.count("\ufffd")
        if good < 3 * replaced:
            return None
    return Text(bytes(encoded), "utf-8", replaced - data.count("\ufffd".encode()))


def _strictly(data: bytes, encoding: str) -> Text | None:
    try:
        return Text(utf8(data.decode(encoding)), encoding)
    except (UnicodeDecodeError, UnicodeEncodeError, LookupError):
        return None


def _declared(data: bytes, declared: str | None, markup: bool) -> tuple[str | None, ...]:
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    named = map_encoding_to_html5(declared, fallback_utf8=False) if declared else None
    return named, detect_encoding(data, from_html_meta=True) if markup else None


def _detected(data: bytes) -> Text:
    from resiliparse.parse.encoding import detect_encoding

    encoding = detect_encoding(data) or "cp1252"
    # Windows-1252 has a character for nearly every byte, and is most frequent.
    return _strictly(data, encoding) or min(
        (_replacing(data, name) for name in (encoding, "cp1252")), key=lambda text: text.replaced
    )


def _replacing(data: bytes, encoding: str) -> Text:
    text = data.decode(encoding, "replace")
    return Text(utf8(text), encoding, text.count("\ufffd"))


def _utf16_without_mark(data: bytes) -> str | None:
    """UTF-16, when every other byte of a sample is mostly NUL: Latin text that lost its mark."""
    sample = data[:SAMPLE]
    if len(data) % 2 or b"\0" not in sample:
        return None
    high, low = sample[1::2].count(0), sample[::2].count(0)
    enough = 0.4 * len(sample) / 2
    if high > enough and not low:
        return "utf-16-le"
    return "utf-16-be" if low > enough and not high else None


def _checked(text: Text) -> Text:
    characters = text.utf8[:SAMPLE].translate(None, CONTINUATIONS)
    controls = len(characters) - len(characters.translate(None, CONTROLS))
    if controls > len(characters) / 10:
        raise NotTextError(f"no text: {controls} control characters in the first {len(characters)}")
    return text
