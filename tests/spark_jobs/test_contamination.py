"""Eval items in texts: what is found, what is not, what becomes of the text, and that the ledger says so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.config.corpus import DecontaminateConfig
from bloomery.config.sources import EvalSet, SnapshotConfig
from spark_jobs.contamination import Index, Item, findable
from spark_jobs.evalsets import EvalSetError, read_eval_sets
from spark_jobs.repeats import cut
from tests.spark_jobs.corpus import prose, snapshot_config

QUESTION = "Natalia sold clips to forty eight of her friends in April, and then she sold half as many in May."
ITEM = Item("gsm8k", 17, QUESTION, "72 clips")
SHORT = Item("trivia", 0, "Who painted the ceiling?", "Michelangelo")
CONFIG = DecontaminateConfig()


def hits(text, *items, config=CONFIG):
    return Index(items, config).hits(text)


def test_thirteen_words_in_a_row_are_found_whatever_their_case_and_punctuation():
    words = QUESTION.split()
    for held in (QUESTION, QUESTION.upper(), " ; ".join(words[3:16]), "\n".join(words)):
        text = f"{prose(1)} {held} {prose(2)}"
        (found,) = hits(text, ITEM)
        assert found.item == "gsm8k/17" and not found.answered
        assert text[found.start : found.end].split()[0].lower() == held.split()[0].lower()
    assert hits(" ".join(words[:12]) + " else " + " ".join(words[12:]), ITEM) == []
    assert hits("", ITEM) == hits("!?", ITEM) == []


def test_the_answer_after_the_question_is_told():
    (found,) = hits(f"{QUESTION} So how many? 72 clips, of course.", ITEM)
    assert found.answered
    (found,) = hits(f"{QUESTION} {prose(3, 40)} 72 clips", ITEM)
    assert not found.answered


def test_a_short_question_counts_with_its_answer_only():
    assert hits("Who painted the ceiling? Nobody knows.", SHORT) == []
    (found,) = hits("Who painted the ceiling? It was Michelangelo.", SHORT)
    assert found.answered and not findable(SHORT._replace(answer=""), CONFIG)
    assert hits("Who painted the ceiling?", SHORT._replace(answer="")) == []


def test_a_text_is_cut_at_its_matches_alone():
    """By place: the same words elsewhere stay. Characters whose lower case is longer move nothing."""
    before, after = f"İstanbul. {QUESTION[:30]} ", f" {prose(5)} {QUESTION[:30]}"
    text = before + QUESTION + after
    left = cut(text, [(hit.start, hit.end) for hit in hits(text, ITEM)])
    assert left.startswith(before) and left.endswith(after) and len(left) < len(before + after) + 40


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_any_text_and_item_is_judged(text, questions):
    items = [Item("set", number, question, "yes") for number, question in enumerate(questions)]
    for found in hits(text + " ".join(questions), *items):
        assert 0 <= found.start < found.end <= len(text + " ".join(questions))


def test_eval_sets_are_read_as_their_fields_say(tmp_path):
    rows = [{"q": "Two?", "c": ["one", "two"], "a": 1}, {"q": "Three?", "c": ["three"], "a": "x"}]
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    chosen = EvalSet(name="set", uri=str(path), question=("q",), answer="a", choices="c")
    assert read_eval_sets([chosen]) == [Item("set", 0, "Two?", "two"), Item("set", 1, "Three?", "x")]
    with pytest.raises(EvalSetError, match=r"set\.jsonl, line 1: no field 'question'"):
        read_eval_sets([EvalSet(name="set", uri=str(path))])
    path.write_text('{"q": "x"')
    with pytest.raises(EvalSetError, match="line 1: not JSON"):
        read_eval_sets([chosen])
    path.write_text('{"q": "x", "a": 7, "c": []}')
    with pytest.raises(EvalSetError, match="answer 7 is not one of c"):
        read_eval_sets([chosen])


@pytest.mark.parametrize("action", ["drop", "cut"])
def test_no_item_is_left_in_the_corpus(pipeline, action):
    folder = pipeline.corpus / "texts"
    folder.mkdir()
    texts = [prose(n) for n in range(10)]
    texts[3] += f" {QUESTION} The answer is 72 clips."
    texts[6] = f"{QUESTION} {texts[6]}"
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(texts))
    )
    evals = pipeline.corpus / "evals.jsonl"
    evals.write_text(json.dumps({"question": QUESTION, "answer": "72 clips"}) + "\n")
    sets = (EvalSet(name="gsm8k", uri=str(evals)),)
    pipeline.snapshot = SnapshotConfig(sources=snapshot_config(folder).sources, eval_sets=sets)
    way = ("ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate", "ledger")
    pipeline.run(*way, configs={"decontaminate": DecontaminateConfig(action=action)})
    found = pipeline.rows("decontaminate", "hits")
    assert sorted((row["item"], row["answered"], row["action"]) for row in found) == [
        ("gsm8k/0", answered, "dropped" if action == "drop" else "cut") for answered in (False, True)
    ]
    rows = {row["external_id"]: row for row in pipeline.rows("ledger", "ledger")}
    kept = {row["id"]: row["text"] for row in pipeline.rows("decontaminate") if row["status"] == "kept"}
    for number, text in enumerate(texts):
        row = rows[str(number)]
        if number not in {3, 6}:
            assert row["status"] == "kept" and kept[row["id"]] == text
        elif action == "drop":
            assert (row["status"], row["stage"], row["item"]) == ("contaminated", "decontaminate", "gsm8k/0")
        else:
            assert row["status"] == "kept" and row["cut"] > 60 and not hits(kept[row["id"]], ITEM)
            assert kept[row["id"]].strip(" .") in text
    # An eval set that changes makes another snapshot, and only what judges by it runs again.
    evals.write_text(json.dumps({"question": prose(1), "answer": ""}) + "\n")
    before = {name: outcome.digest for name, outcome in pipeline.outcomes.items()}
    pipeline.run(*way, configs={"decontaminate": DecontaminateConfig(action=action)})
    assert [name for name in way if pipeline.outcomes[name].digest != before[name]] == [
        "decontaminate",
        "ledger",
    ]


def test_the_table_is_the_same_where_nothing_is_found_as_where_nothing_is_looked_for(pipeline):
    folder = pipeline.corpus / "texts"
    folder.mkdir()
    texts = [prose(n) for n in range(5)] + [prose(0), "\U0001f600 " + prose(6)]
    rows = [{"id": n, "text": text, "url": f"https://example.org/{n}"} for n, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evals = pipeline.corpus / "evals.jsonl"
    evals.write_text(json.dumps({"question": QUESTION, "answer": "72 clips"}) + "\n")
    sources = snapshot_config(folder).sources
    way = ("ingest", "measure", "clean", "signatures", "pairs", "dedup", "decontaminate")
    found = []
    for sets in ((EvalSet(name="gsm8k", uri=str(evals)),), ()):
        pipeline.snapshot = SnapshotConfig(sources=sources, eval_sets=sets)
        pipeline.run(*way)
        outputs = pipeline.outcomes["decontaminate"].manifest.outputs
        found.append(outputs["documents"])
        assert outputs["hits"].rows == 0
    assert found[0] == found[1] and found[0].documents == 6
