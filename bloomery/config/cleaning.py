"""Cleaning: what is measured of a text, and the bounds that judge it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bloomery.config.base import Config, execution

LANGUAGES = frozenset(
    """
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb
    co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he
    hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez
    li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn
    no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq
    sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo
    yue zh
    """.split()  # noqa: SIM905  a list of 176 literals would fill a page
)
"""Codes that the language identifier (fastText lid.176) can answer with."""


Profile = Literal["paper", "datatrove-0.10.1"]
"""Whose reading of the rules: the papers', or a peer's with its word tokenizer."""
LineRules = Literal["c4", "refinedweb", "duplicate_lines", "duplicate_paragraphs"]
Pii = Literal["email", "ip", "phone", "credit_card", "iban", "api_key"]


Extractor = Literal["resiliparse", "trafilatura"]
Family = Literal[
    "document",
    "opt_out",
    "licence",
    "blocklist",
    "language",
    "gopher",
    "gopher_repetition",
    "c4",
    "refinedweb",
    "fineweb",
    "pii",
    "classifier",
]


class PinnedFile(Config):
    """A file that the user brings: known by its digest, wherever it stands."""

    path: str = execution(description="where the file stands, on every worker")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of the file; another is refused")


class Classifier(Config):
    """A quality classifier."""

    file: PinnedFile = Field(description="the model")
    format: Literal["fasttext", "linear"] = Field(
        description="fastText's own file, or linear weights over hashed n-grams in safetensors"
    )
    label: str = Field("hq", description="fastText: the label, without __label__, whose probability counts")


class OptOut(Config):
    """How a document says that it is not to be trained on."""

    field: str = Field(description="metadata field, as robots")
    values: tuple[str, ...] = Field(
        ("noai", "noimageai", "none"), min_length=1, description="words in it that say so, any case"
    )


class C4Lines(Config):
    """Line rules of C4 (JMLR 21:140, section 2.2) and its code; FineWeb leaves terminal_punctuation out."""

    terminal_punctuation: bool = Field(True, description="drop a line that does not end as a sentence")
    min_words: int = Field(3, ge=0, description="drop a line of fewer words")
    max_word_length: int = Field(1000, gt=0, description="drop a line with a longer word, characters")
    javascript: bool = Field(True, description='drop a line with the word "javascript"')
    policies: bool = Field(True, description="drop a line with a phrase of cookie and privacy policies")
    citations: bool = Field(True, description="cut out [1], [edit], [citation needed]")


class MeasureConfig(Config):
    """What is done to a text, and how it is measured; the bounds stand in `clean`."""

    profile: Profile = Field("paper", description="reading of the rules, and word tokenizer")
    extractor: Extractor = Field("resiliparse", description="what finds the main text of HTML")
    extract_seconds: float = Field(
        10.0, gt=0, description="a page that takes longer to extract is quarantined, seconds"
    )
    max_document_bytes: int = Field(
        16 << 20, gt=0, description="a longer document is quarantined, bytes of UTF-8"
    )
    lines: tuple[LineRules, ...] = Field((), description="line rules that edit the text, in order")
    c4_lines: C4Lines = Field(C4Lines(), description="line rules of C4")
    pii: tuple[Pii, ...] = Field(
        ("email", "ip", "phone", "credit_card", "iban", "api_key"),
        description="kinds of personal data to count and replace",
    )
    bad_words: PinnedFile | None = Field(None, description="words to count: a text file of one a line")
    blocked_urls: PinnedFile | None = Field(
        None, description="hosts and URLs to refuse: a text file of one a line"
    )
    opt_out: tuple[OptOut, ...] = Field(
        (OptOut(field="robots"), OptOut(field="x-robots-tag")),
        description="metadata that says a document is not to be trained on",
    )
    classifier: Classifier | None = Field(None, description="quality classifier")


class DocumentConfig(Config):
    """What every document must have."""

    min_characters: int = Field(1, ge=0, description="fewest characters of the final text")


class OptOutConfig(Config):
    """Documents whose metadata opt out."""

    max_declared: int = Field(0, ge=0, description="most fields that say so")


class BlocklistConfig(Config):
    """The user's block lists."""

    max_bad_words: int = Field(0, ge=0, description="most words of the list of bad words")
    max_urls: int = Field(0, ge=0, le=1, description="0 drops a document whose URL is blocked")


class GopherConfig(Config):
    """Quality rules of Gopher (arXiv:2112.11446, section A.1.1); each default is the paper's number."""

    min_words: int = Field(50, ge=0, description="fewest words that hold more than symbols")
    max_words: int = Field(100_000, gt=0, description="most words that hold more than symbols")
    min_mean_word_length: float = Field(3.0, ge=0, description="least mean word length, characters")
    max_mean_word_length: float = Field(10.0, gt=0, description="greatest mean word length, characters")
    max_hash_ratio: float = Field(0.1, ge=0, description="most '#' per word")
    max_ellipsis_ratio: float = Field(0.1, ge=0, description="most ellipses per word")
    max_bullet_lines: float = Field(
        0.9, ge=0, le=1, description="greatest fraction of lines that start with a bullet"
    )
    max_ellipsis_lines: float = Field(
        0.3, ge=0, le=1, description="greatest fraction of lines that end in an ellipsis"
    )
    min_alpha_words: float = Field(
        0.8, ge=0, le=1, description="least fraction of words with an alphabetic character"
    )
    min_stop_words: int = Field(2, ge=0, le=8, description="fewest distinct stop words of the paper's eight")


class GopherRepetitionConfig(Config):
    """Repetition rules of Gopher (arXiv:2112.11446, Table A1): greatest fractions, the paper's numbers."""

    max_duplicate_paragraphs: float = Field(0.3, ge=0, le=1, description="of duplicate paragraphs")
    max_duplicate_paragraph_characters: float = Field(
        0.2, ge=0, le=1, description="of characters in duplicate paragraphs"
    )
    max_duplicate_lines: float = Field(0.3, ge=0, le=1, description="of duplicate lines")
    max_duplicate_line_characters: float = Field(
        0.2, ge=0, le=1, description="of characters in duplicate lines"
    )
    max_top_2_gram: float = Field(0.2, ge=0, description="of characters in the commonest 2-gram")
    max_top_3_gram: float = Field(0.18, ge=0, description="of characters in the commonest 3-gram")
    max_top_4_gram: float = Field(0.16, ge=0, description="of characters in the commonest 4-gram")
    max_duplicate_5_grams: float = Field(0.15, ge=0, description="of characters in duplicate 5-grams")
    max_duplicate_6_grams: float = Field(0.14, ge=0, description="of characters in duplicate 6-grams")
    max_duplicate_7_grams: float = Field(0.13, ge=0, description="of characters in duplicate 7-grams")
    max_duplicate_8_grams: float = Field(0.12, ge=0, description="of characters in duplicate 8-grams")
    max_duplicate_9_grams: float = Field(0.11, ge=0, description="of characters in duplicate 9-grams")
    max_duplicate_10_grams: float = Field(0.1, ge=0, description="of characters in duplicate 10-grams")


class C4Config(Config):
    """Rules of C4 for documents (JMLR 21:140, section 2.2)."""

    max_lorem_ipsum: int = Field(0, ge=0, description='most lines with "lorem ipsum"')
    max_curly_brackets: int = Field(0, ge=0, description="most lines with a curly bracket")
    min_sentences: int = Field(5, ge=0, description="fewest sentences")


class FineWebConfig(Config):
    """Quality rules of FineWeb (arXiv:2406.17557, section 3.6)."""

    min_terminal_lines: float = Field(
        0.12, ge=0, le=1, description="least fraction of lines that end as a sentence"
    )
    max_short_lines: float = Field(
        0.67, ge=0, le=1, description="greatest fraction of lines of up to 30 characters"
    )
    max_duplicate_line_characters: float = Field(
        0.01, ge=0, le=1, description="greatest fraction of characters in duplicate lines"
    )
    max_newline_ratio: float = Field(0.3, ge=0, description="most line ends per word")


class RefinedWebConfig(Config):
    """Rule of RefinedWeb (arXiv:2306.01116, G.2)."""

    max_removed_words: float = Field(
        0.05, ge=0, le=1, description="greatest fraction of words in the lines that its line rules remove"
    )


class PiiConfig(Config):
    """Bounds on personal data; none by default, as it is replaced."""

    max_email: int | None = Field(None, ge=0, description="most e-mail addresses")
    max_ip: int | None = Field(None, ge=0, description="most public IP addresses")
    max_phone: int | None = Field(None, ge=0, description="most phone numbers")
    max_credit_card: int | None = Field(None, ge=0, description="most credit card numbers")
    max_iban: int | None = Field(None, ge=0, description="most IBANs")
    max_api_key: int | None = Field(None, ge=0, description="most API keys")


class ClassifierConfig(Config):
    """Bound on the quality classifier's score."""

    min_score: float | None = Field(None, ge=0, le=1, description="least score")


class CleanConfig(Config):
    """Bounds on what was measured: a change of one runs SQL, and measures nothing again."""

    chain: tuple[Family, ...] = Field(
        (
            *("document", "opt_out", "licence", "blocklist", "language"),
            *("gopher", "gopher_repetition", "classifier"),
        ),
        description="families of rules that judge, in order: the first bound broken is the verdict",
    )
    languages: tuple[str, ...] = Field(
        ("en",), description="language codes to keep; empty keeps every language"
    )
    min_language_score: float = Field(
        0.65, ge=0, le=1, description="least score of the language identifier (FineWeb: 0.65)"
    )
    licences: tuple[str, ...] = Field(
        (), description="licences to keep, of documents that name one; empty keeps every licence"
    )
    document: DocumentConfig = Field(DocumentConfig(), description="what every document must have")
    opt_out: OptOutConfig = Field(OptOutConfig(), description="documents that opt out")
    blocklist: BlocklistConfig = Field(BlocklistConfig(), description="the user's block lists")
    gopher: GopherConfig = Field(GopherConfig(), description="quality rules of Gopher")
    gopher_repetition: GopherRepetitionConfig = Field(
        GopherRepetitionConfig(), description="repetition rules of Gopher"
    )
    c4: C4Config = Field(C4Config(), description="rules of C4")
    refinedweb: RefinedWebConfig = Field(RefinedWebConfig(), description="rule of RefinedWeb")
    fineweb: FineWebConfig = Field(FineWebConfig(), description="quality rules of FineWeb")
    pii: PiiConfig = Field(PiiConfig(), description="personal data")
    classifier: ClassifierConfig = Field(ClassifierConfig(), description="quality classifier")

    @field_validator("languages")
    @classmethod
    def _known_languages(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(languages) - LANGUAGES):
            raise ValueError(
                f"unknown language code(s) {', '.join(unknown)}, which no document would have; "
                "codes are those of fastText's lid.176, as en, de, zh"
            )
        return languages

    @field_validator("chain")
    @classmethod
    def _each_family_once(cls, chain: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({family for family in chain if chain.count(family) > 1}):
            raise ValueError(f"family {', '.join(twice)} stands in the chain more than once")
        return chain
