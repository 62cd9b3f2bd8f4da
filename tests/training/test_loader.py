"""What ranks read: the same rows whatever their number, every sample as planned, all begins known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.shards.overlay import Overlay, Tombstone
from tests.shards.data import POLICY
from tests.training.corpus import config, opened, tokens_of, write
from training.loader import FIRST_RECEIPT, IGNORED, Loader, Mark, chain, plan_steps, read_steps


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "shards")


def read(data, first, last, rank=0, ranks=1):
    """Batches of the steps [first, last)."""
    loader = Loader(data, rank, ranks, first)
    batches = [loader.read() for _ in range(first, last)]
    loader.close()
    assert [batch.step for batch in batches] == list(range(first, last))
    return batches


def whole(parts):
    """The rows of all ranks of a step."""
    return tuple(
        np.concatenate([getattr(part, field) for part in parts])
        for field in ("inputs", "targets", "positions")
    )


def starts(parts):
    """Begins of documents over the rows of all ranks of a step."""
    sizes = np.cumsum([0, *(part.inputs.size for part in parts)])
    return [int(b + base) for part, base in zip(parts, sizes, strict=False) for b in part.cu_seqlens[:-1]]


schedules = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(["concat", "best_fit"]),
        "batch": st.sampled_from([(), ({"until_step": 5, "value": 3}, {"until_step": 9, "value": 7})]),
        "length": st.sampled_from([(), ({"until_step": 4, "value": 4}, {"until_step": 12, "value": 8})]),
        "mixture": st.lists(
            st.fixed_dictionaries(
                {
                    "weights": st.fixed_dictionaries(
                        {n: st.integers(1, 9) for n in ("books", "code", "web")}
                    ),
                    "over_steps": st.sampled_from([0, 6]),
                    "curve": st.sampled_from(["linear", "cosine"]),
                }
            ),
            max_size=2,
        ).map(lambda rows: tuple(row | {"from_step": 3 + 8 * i} for i, row in enumerate(rows))),
    }
)


@given(schedules, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 64)), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_number_of_ranks_changed_in_mid_run_reads_the_same(corpus, schedule, legs):
    """One rank reads the run in one go; others read it in legs of some steps, each with another world."""
    train = config(schedule=schedule, steps=sum(steps for steps, _ in legs))
    alone, receipt, again, step = read(opened(corpus, train), 0, train.steps), FIRST_RECEIPT, FIRST_RECEIPT, 0
    for steps, ranks in legs:
        data = opened(corpus, train)  # a new process knows the step only
        together = [read_steps(data, plan_steps(data, step, steps, rank, ranks)) for rank in range(ranks)]
        for number, parts in enumerate(zip(*together, strict=True), step):
            assert all(map(np.array_equal, whole(parts), whole([alone[number]])))
            assert starts(parts) == starts([alone[number]])
            receipt = chain(receipt, number, str(Mark.join(part.mark for part in parts)))
            again = chain(again, number, str(alone[number].mark))
        step += steps
    assert receipt == again


@given(schedules)
@settings(max_examples=25, deadline=None)
def test_nothing_is_doubled_or_dropped(corpus, schedule):
    """Counted by source and epoch: each position of a source's order once, each epoch every sample once."""
    data = opened(corpus, config(schedule=schedule, steps=150))
    found = data.feed.read(np.arange(data.feed.samples))
    for number, source in enumerate(data.feed.sources):
        mine = found.source == number
        assert found.position[mine].tolist() == list(range(mine.sum()))
        for epoch in range(mine.sum() // source.order.length):
            samples = found.sample[mine][epoch * source.order.length : (epoch + 1) * source.order.length]
            assert sorted(samples) == list(range(source.order.length))


def test_rows_are_the_tokens_of_their_samples(corpus):
    data = opened(corpus, config(schedule={"length": [{"until_step": 20, "value": 4}]}))
    plain = [tokens_of(corpus, source.name).astype(int) for source in data.feed.sources]
    for batch in read(data, 0, 40):
        found = data.feed.read(np.arange(*np.cumsum(data.feed.span(batch.step))))
        rows = [plain[s][i * 16 : i * 16 + 17] for s, i in zip(found.source, found.sample, strict=True)]
        assert batch.inputs.shape == (8, 16) if batch.step >= 20 else (32, 4)
        assert np.array_equal(batch.inputs.reshape(8, 16), [row[:-1] for row in rows])
        assert np.array_equal(batch.targets.reshape(8, 16), [row[1:] for row in rows])


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_begins_and_positions_come_from_the_index(corpus, packing):
    """Separators end documents in this corpus, so a plain scan finds the same begins."""
    data = opened(corpus, config(sequence_length=64, schedule={"packing": packing}))
    seen = 0
    for batch in read(data, 0, 40):
        after = np.pad(batch.inputs == POLICY.eos_id, ((0, 0), (1, 0)))[:, :-1]
        after[:, 0] = True
        begins = np.zeros(batch.inputs.size, bool)
        begins[batch.cu_seqlens[:-1]] = True
        seen += begins.sum()
        begins = begins.reshape(after.shape)
        assert batch.cu_seqlens[-1] == batch.inputs.size
        padding = (batch.targets == IGNORED) & (batch.inputs == POLICY.eos_id)
        if packing == "concat":
            assert np.array_equal(begins, after)
        else:  # also where a piece goes on, whose first token is no target; padding is one run of separators
            assert (begins >= after & ~padding & (batch.inputs != POLICY.eos_id)).all()
            extra = begins & ~after
            assert (batch.targets[:, :-1][extra[:, 1:]] == IGNORED).all()
        reset = np.where(begins, np.arange(after.size).reshape(after.shape), 0)
        last = np.maximum.accumulate(reset.reshape(-1)).reshape(after.shape)
        assert np.array_equal(batch.positions, np.arange(after.size).reshape(after.shape) - last)
    assert seen > 40 * 8


def test_every_token_is_a_target_once_an_epoch(corpus):
    """Of best fit: each token but the first of a document that a bin begins with."""
    only, packed = (
        {"books": 0, "code": 0, "web": 1},
        {"sequence_length": 64, "schedule": {"packing": "best_fit"}},
    )
    cut = opened(corpus, config(**packed), only).feed.sources[0].cut
    data = opened(corpus, config(**packed, global_batch=1, steps=cut.samples), only)
    targets = np.concatenate([batch.targets.reshape(-1) for batch in read(data, 0, cut.samples)])
    tokens = tokens_of(corpus, "web").astype(int)
    begins = np.append(0, np.flatnonzero(tokens == POLICY.eos_id) + 1)
    bins = cut.segments(np.arange(cut.samples))
    first = bins.start[(bins.at == 0) & np.isin(bins.start, begins)]
    expected = np.bincount(np.delete(tokens, first), minlength=1000)
    assert np.bincount(targets[targets != IGNORED], minlength=1000).tolist() == expected.tolist()


def test_the_token_budget_ends_the_run_exactly(corpus):
    data = opened(corpus, config(steps=None), {"books": 1, "code": 2, "web": 3}, tokens=7777)
    assert data.feed.steps == -(-7777 // (16 * 8))
    batches = read(data, 0, data.feed.steps)
    assert sum((batch.targets != IGNORED).sum() for batch in batches) == 7777
    assert len(batches[-1].inputs) == -(-7777 // 16) % 8
    assert data.tokens(data.feed.steps) == 7777
    assert data.tokens(3) == 3 * 8 * 16


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_document_that_was_taken_down_is_never_emitted(corpus, packing):
    train = config(sequence_length=64, steps=150, schedule={"packing": packing})
    stream = corpus.stream("train", "web")
    lengths = np.diff(stream.shard(1).side.starts.astype(int))
    number = int(lengths.argmax())
    start = stream.start(1) + int(stream.shard(1).side.starts[number])
    stone = Tombstone(
        source="web", document="0" * 32, start=start, stop=start + int(lengths[number]), since=0
    )
    before, after = opened(corpus, train), opened(corpus, train, overlay=Overlay(tombstones=(stone,)))
    changed = 0
    gone = tokens_of(corpus, "web").astype(int)[stone.start : stone.stop]
    for old, new in zip(read(before, 0, 150), read(after, 0, 150), strict=True):
        differs = (old.inputs != new.inputs) | (old.targets != new.targets)
        changed += differs.sum()
        assert set(new.inputs[differs]) <= {POLICY.eos_id, *old.inputs[differs]}
        assert set(new.targets[old.targets != new.targets]) <= {IGNORED}
        assert np.array_equal(old.positions, new.positions)
        flat = new.inputs.reshape(-1)
        run = np.lib.stride_tricks.sliding_window_view(flat, 5)
        assert not (run == gone[3:8]).all(1).any()
    assert changed >= 2 * (len(gone) - 3)


def test_a_receipt_notices_another_token_sample_and_order(corpus):
    data = opened(corpus, config())
    [batch] = read_steps(data, plan_steps(data, 3, 1, 0, 1))
    other = opened(corpus, config(seed=2))
    [elsewhere] = read_steps(other, plan_steps(other, 3, 1, 0, 1))
    assert batch.mark != elsewhere.mark
    first = chain(FIRST_RECEIPT, 3, str(batch.mark))
    assert first.before == FIRST_RECEIPT.now
    assert (
        len({first.now, chain(FIRST_RECEIPT, 4, str(batch.mark)).now, chain(first, 3, str(batch.mark)).now})
        == 3
    )
