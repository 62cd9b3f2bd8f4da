"""Personal data in a text: e-mail, public IP addresses, phone numbers, credit cards, IBANs, API keys.

Each kind has a cheap look that most texts fail, a pattern without nested repetition (its time is linear in
the text), and a check of what the pattern found. Found ones are counted and replaced by a typed placeholder.
Kinds are taken in the order below, so that what one has replaced is nothing to the next: a card number is
no phone number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

from bloomery.config.cleaning import Pii


class Kind(NamedTuple):
    """How one kind is found."""

    placeholder: str
    hint: Callable[[str], object]
    """False for a text that holds none."""
    pattern: re.Pattern[str]
    check: Callable[[str], int]
    """How many characters of what the pattern found are one; 0 for none."""


class Redacted(NamedTuple):
    """A text without personal data, and how much there was."""

    text: str
    counts: dict[Pii, int]


def redact(text: str, kinds: Iterable[Pii]) -> Redacted:
    """Replaces what is found of some kinds by placeholders."""
    counts: dict[Pii, int] = {}
    for name, kind in KINDS.items():
        if name in kinds:
            text, counts[name] = _replace(text, kind) if kind.hint(text) else (text, 0)
    return Redacted(text, counts)


def _replace(text: str, kind: Kind) -> tuple[str, int]:
    pieces, last = [], 0
    for match in kind.pattern.finditer(text):
        if size := kind.check(match.group()):
            pieces += [text[last : match.start()], kind.placeholder]
            last = match.start() + size
    return ("".join([*pieces, text[last:]]), len(pieces) // 2) if pieces else (text, 0)


def credit_card(number: str) -> int:
    """Whole where the digits satisfy ISO/IEC 7812-1's check digit (Luhn), and are not one digit only."""
    digits = [int(character) for character in number if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    valid = len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
    return len(number) * valid


def iban(found: str) -> int:
    """The beginning that has the length of its country and the check digits of ISO 13616 (mod 97)."""
    bare = re.sub(r"[ -]", "", found)[: IBAN_LENGTHS.get(found[:2], 0)]
    if len(bare) < 5 or len(bare) != IBAN_LENGTHS[bare[:2]]:
        return 0
    if int("".join(str(int(character, 36)) for character in bare[4:] + bare[:4])) % 97 != 1:
        return 0
    places = [place for place, character in enumerate(found) if character not in " -"]
    end = places[len(bare) - 1] + 1
    return end * (not found[end : end + 1].isalnum())


@lru_cache(1 << 12)
def public_ip(address: str) -> int:
    """Whole for an address of the public internet: not private, local, reserved or for documentation."""
    try:
        found = IPv6Address(address) if ":" in address else IPv4Address(address)
    except AddressValueError:
        return 0
    return len(address) * found.is_global


def phone(number: str) -> int:
    """Whole by E.164: an international number has 8 to 15 digits, a North American one 10."""
    digits = sum(map(str.isdigit, number))
    return len(number) * (8 <= digits <= 15 if number.startswith("+") else digits == 10)


def api_key(found: str) -> int:
    """Whole where it looks random: many characters, digits among them."""
    return len(found) * (len(set(found)) > 8 and any(map(str.isdigit, found)))


_LENGTHS = """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27
    DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28
    IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22
    MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24
    SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30
"""
IBAN_LENGTHS = {country: int(length) for country, length in re.findall(r"([A-Z]{2})(\d{2})", _LENGTHS)}
"""Characters of an IBAN by country (SWIFT's registry of ISO 13616, release 99)."""

_DIGIT = re.compile(r"\d").search
_KEY_PREFIXES = (
    *(
        "AKIA",
        "ASIA",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "sk-",
        "k_live_",
        "xox",
        "AIza",
        "hf_",
        "npm_",
        "SG.",
        "-----BEGIN",
    ),
)


def _may_hold_key(text: str) -> bool:
    return any(prefix in text for prefix in _KEY_PREFIXES)


# A pattern that begins with a set of characters is searched several times as fast as one that begins with a
# look-behind, so what must not stand before the first character is looked for behind it.
KINDS: dict[Pii, Kind] = {
    "api_key": Kind(
        "<API_KEY>",
        _may_hold_key,
        re.compile(
            r"-----BEGIN (?:[A-Z]{2,10} ){0,3}PRIVATE KEY-----[A-Za-z0-9+/=\s]{64,8192}-----END"
            r"|(?<![A-Za-z0-9_])(?:"
            r"(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82}"
            r"|glpat-[A-Za-z0-9_-]{20}|sk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,200}|[sr]k_live_[A-Za-z0-9]{24,99}"
            r"|xox[abprs]-[A-Za-z0-9-]{10,72}|AIza[A-Za-z0-9_-]{35}|hf_[A-Za-z0-9]{34}|npm_[A-Za-z0-9]{36}"
            r"|SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43})(?![A-Za-z0-9_])"
        ),
        api_key,
    ),
    "email": Kind(
        "<EMAIL>",
        lambda text: "@" in text,
        re.compile(
            r"(?<![\w.%+-])[A-Za-z0-9](?:[A-Za-z0-9._%+-]{0,62}[A-Za-z0-9])?@"
            r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![\w@-])"
        ),
        len,
    ),
    "ip": Kind(
        "<IP>",
        re.compile(r"\d\.\d|:[0-9A-Fa-f]{0,4}:").search,
        re.compile(
            r"[0-9A-Fa-f:](?<![\w.:].)"
            r"(?:(?<=\d)\d{0,2}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,3}(?::[0-9A-Fa-f]{0,4}){1,7})(?![\w:]|\.\d)"
        ),
        public_ip,
    ),
    "iban": Kind(
        "<IBAN>",
        _DIGIT,
        re.compile(r"[A-Z](?<![A-Za-z0-9].)[A-Z]\d{2}(?:[ -]?[A-Z0-9]){11,30}(?![A-Za-z0-9])"),
        iban,
    ),
    "credit_card": Kind(
        "<CREDIT_CARD>",
        _DIGIT,
        re.compile(
            r"[3-6](?<![\d.,-].)(?:\d{3}(?:[ -]?\d{4}){3}|(?<=3)[47]\d{2}[ -]?\d{6}[ -]?\d{5})"
            r"(?![\d-]|[.,]\d)"
        ),
        credit_card,
    ),
    "phone": Kind(
        "<PHONE>",
        _DIGIT,
        re.compile(
            r"[+(\d](?<![\w.+-].)"
            r"(?:(?<=\+)\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}"
            r"|(?<=\()\d{3}\) ?\d{3}[ .-]\d{4}|(?<=\d)\d{2}[.-]\d{3}[.-]\d{4})(?![\w-]|[.,]\d)"
        ),
        phone,
    ),
}
