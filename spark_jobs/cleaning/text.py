"""Text of a document: HTML to text, encoding repair, Unicode NFC. What an author wrote is left as written."""

from __future__ import annotations

import ftfy
from ftfy import fixes
from resiliparse.extract.html2text import extract_plain_text

REPAIR = ftfy.TextFixerConfig(
    # Mends what encoding broke. Leaves what is right: curly quotes, ligatures, an escape in a manual on HTML.
    unescape_html=False,
    fix_latin_ligatures=False,
    fix_character_width=False,
    uncurl_quotes=False,
    normalization="NFC",
    explain=False,
)


def clean_text(text: str, media_type: str) -> str:
    """The text to keep of a raw one: main content of HTML, mended, no control characters, NFC, stripped."""
    if media_type == "text/html":
        text = extract_plain_text(text, preserve_formatting=True, main_content=True, alt_texts=False)
    return _repair(text).strip()


def _repair(text: str) -> str:
    """What ftfy.fix_text makes of a text; lines of plain ASCII hold no mojibake and skip its heuristics."""
    text = fixes.fix_line_breaks(fixes.remove_terminal_escapes(text))
    if text.isascii():
        return str(fixes.remove_control_chars(text))
    lines = text.split("\n")
    return "\n".join(
        fixes.remove_control_chars(line) if line.isascii() else ftfy.fix_text_segment(line, REPAIR)
        for line in lines
    )
