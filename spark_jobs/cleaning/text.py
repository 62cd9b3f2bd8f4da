"""Text of a document: encoding repair, Unicode NFC. What an author wrote is left as written."""

from __future__ import annotations

import re
import unicodedata

import ftfy
from ftfy import fixes
from ftfy.badness import is_bad
from ftfy.chardata import CONTROL_CHARS

REPAIR = ftfy.TextFixerConfig(
    # Mends what encoding broke. Leaves what is right: curly quotes, ligatures, an escape in a manual on HTML.
    unescape_html=False,
    fix_latin_ligatures=False,
    fix_character_width=False,
    uncurl_quotes=False,
    normalization="NFC",
    explain=False,
)


def repair(text: str) -> str:
    """What ftfy.fix_text makes of a text, stripped: mended, no control characters, NFC."""
    text = fixes.fix_line_breaks(fixes.remove_terminal_escapes(text))
    if text.isascii():
        return str(fixes.remove_control_chars(text)).strip()
    return "\n".join(map(_mended, text.split("\n"))).strip()


def _mended(line: str) -> str:
    """What ftfy makes of a line. It passes over most, which have nothing that any of its steps would change;
    looking for that takes a third of the time of taking the steps."""
    if line.isascii():
        return str(fixes.remove_control_chars(line))
    if _CONTROL.search(line) or is_bad(line) or not unicodedata.is_normalized("NFC", line):
        return ftfy.fix_text_segment(line, REPAIR)
    return line


_CONTROL = re.compile(f"[{re.escape(''.join(map(chr, CONTROL_CHARS)))}\x80-\x9f\ud800-\udfff]")
"""Control characters, of C1 as well, and surrogates."""
