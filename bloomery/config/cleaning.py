"""Extraction, repair, language, quality rules."""

from __future__ import annotations

from pydantic import Field, field_validator

from bloomery.config.base import Config

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


class CleanConfig(Config):
    """Text extraction, repair and quality rules."""

    languages: tuple[str, ...] = Field(
        ("en",), description="language codes to keep; empty keeps every language"
    )
    min_language_score: float = Field(
        0.65, ge=0, le=1, description="least score of the language identifier (FineWeb: 0.65)"
    )
    gopher: GopherConfig = Field(GopherConfig(), description="quality rules of Gopher")

    @field_validator("languages")
    @classmethod
    def _known_languages(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(languages) - LANGUAGES):
            raise ValueError(
                f"unknown language code(s) {', '.join(unknown)}, which no document would have; "
                "codes are those of fastText's lid.176, as en, de, zh"
            )
        return languages
