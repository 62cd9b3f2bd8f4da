"""Text of a document: encoding repair, Unicode NFC. What an author wrote is left as written."""

from __future__ import annotations

import ftfy
from ftfy import fixes

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
    """What ftfy.fix_text makes of a text, stripped: mended, no control characters, NFC.

    Lines of plain ASCII hold no mojibake and skip its heuristics.
    """
    text = fixes.fix_line_breaks(fixes.remove_terminal_escapes(text))
    if text.isascii():
        return str(fixes.remove_control_chars(text)).strip()
    lines = text.split("\n")
    return "\n".join(
        fixes.remove_control_chars(line) if line.isascii() else ftfy.fix_text_segment(line, REPAIR)
        for line in lines
    ).strip()
