"""Policy, signature, promotion: one champion, a dense log, and reasons for whoever is kept out."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.artifacts.refs import read_ref
from bloomery.artifacts.run import artifact
from bloomery.artifacts.store import LocalStore
from bloomery.config.release import ReleaseConfig
from tests.validation.models import make_candidate
from validation.release import promote as module
from validation.release.policy import Eval, decide
from validation.release.promote import (
    Candidate,
    ReleaseError,
    champion,
    consider,
    promote,
    releases,
    sign_candidate,
)
from validation.release.signing import SignatureError, keys


def score(bits_per_byte, shards="5" * 64):
    return Eval(digest="e" * 64, bits_per_byte=bits_per_byte, shards=shards)


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def release(store, candidate, policy=ReleaseConfig(), approver="ada", log=print):  # noqa: B008  frozen
    return promote(store, "m", candidate, sign_candidate(store, candidate), policy, approver, log)


@pytest.mark.parametrize(
    ("champion", "candidate", "policy", "promoted", "reason"),
    [
        (None, 2.0, {}, True, "the first release"),
        (None, 2.0, {"max_bits_per_byte": 1.9}, False, "more than the policy's 1.9000"),
        (2.0, 1.9, {}, True, "better by 0.1000"),
        (2.0, 2.0, {}, False, "not better"),
        (2.0, 2.1, {}, False, "not better by -0.1000"),
        (2.0, 1.9, {"min_improvement": 0.2}, False, "at least 0.2000"),
    ],
)
def test_policy(champion, candidate, policy, promoted, reason):
    decision = decide(champion and score(champion), score(candidate), ReleaseConfig(**policy))
    assert decision.promote is promoted
    assert reason in decision.reasons[0]


@given(st.floats(0.1, 9), st.floats(0.1, 9), st.floats(0, 1))
def test_two_models_never_replace_each_other(first, second, margin):
    policy = ReleaseConfig(min_improvement=margin)
    there = decide(score(first), score(second), policy).promote
    back = decide(score(second), score(first), policy).promote
    assert not (there and back)


def test_other_held_out_data_is_said():
    decision = decide(score(2.0), score(1.0, shards="6" * 64), ReleaseConfig())
    assert "different held-out data" in decision.reasons[-1]


def test_a_release_is_the_champion_and_in_the_log(store):
    candidate = make_candidate(store, "one", 2.0)
    verdict = release(store, candidate)
    assert verdict.release == champion(store, "m") == next(releases(store, "m"))
    assert (verdict.release.version, verdict.release.approver) == (1, "ada")
    assert release(store, candidate).release == verdict.release  # a retry releases nothing anew
    assert len(list(releases(store, "m"))) == 1


def test_a_worse_candidate_is_kept_out_with_the_reasons(store):
    release(store, make_candidate(store, "one", 2.0))
    worse, said = make_candidate(store, "two", 2.5), []
    assert not consider(store, "m", worse, ReleaseConfig()).promote
    verdict = release(store, worse, log=said.append)
    assert verdict.release is None
    assert "2.5000 bits per byte against the champion's 2.0000" in verdict.decision.reasons[0]
    assert said == [f"kept the champion of m: {verdict.decision.reasons[0]}"]
    assert champion(store, "m").version == 1
    assert len(list(releases(store, "m"))) == 1


def test_racing_promotions_leave_the_best_and_a_dense_log(store):
    scores = [2.0, 1.5, 1.9, 1.2, 1.7, 1.4, 1.1, 1.8]
    candidates = [make_candidate(store, f"c{i}", bits) for i, bits in enumerate(scores)]
    signatures = [sign_candidate(store, candidate) for candidate in candidates]

    def run(pair):
        return promote(store, "m", *pair, ReleaseConfig(), "ada", lambda _: None)

    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(run, zip(candidates, signatures, strict=True)))
    log = list(releases(store, "m"))
    assert [entry.version for entry in log] == list(range(1, len(log) + 1))
    measured = [entry.eval.bits_per_byte for entry in log]
    assert measured == sorted(measured, reverse=True)
    assert measured[-1] == 1.1
    assert champion(store, "m") == log[-1]
    assert sorted(v.release.version for v in verdicts if v.release) == [entry.version for entry in log]


def test_equal_racers_have_one_winner(store):
    candidates = [make_candidate(store, f"c{i}", 2.0) for i in range(6)]
    signatures = [sign_candidate(store, candidate) for candidate in candidates]
    with ThreadPoolExecutor(6) as pool:
        verdicts = list(
            pool.map(
                lambda pair: promote(store, "m", *pair, ReleaseConfig(), "ada", lambda _: None),
                zip(candidates, signatures, strict=True),
            )
        )
    assert sum(verdict.release is not None for verdict in verdicts) == 1
    assert champion(store, "m").version == 1


def test_a_kill_between_swap_and_log_is_healed_by_the_next(store, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_log", killed)
        with pytest.raises(KeyboardInterrupt):
            release(store, make_candidate(store, "one", 2.0))
    assert champion(store, "m").version == 1
    assert list(releases(store, "m")) == []
    release(store, make_candidate(store, "two", 1.0))
    assert [entry.version for entry in releases(store, "m")] == [1, 2]


def test_a_changed_file_is_not_released(store, tmp_path):
    candidate = make_candidate(store, "one", 2.0)
    signature = sign_candidate(store, candidate)
    path = artifact(store, candidate.export, "model").local(tmp_path) / "model.safetensors"
    path.write_bytes(b"other weights")
    with pytest.raises(SignatureError, match="exported as"):
        promote(store, "m", candidate, signature, ReleaseConfig(), "ada")
    assert champion(store, "m") is None


def test_another_models_or_keys_signature_is_refused(store, home):
    one, two = make_candidate(store, "one", 2.0), make_candidate(store, "two", 1.0)
    with pytest.raises(SignatureError, match="does not hold"):
        promote(store, "m", one, sign_candidate(store, two), ReleaseConfig(), "ada")
    signature = sign_candidate(store, one)
    for path in keys():
        path.unlink()
    with pytest.raises(SignatureError, match="does not hold"):
        promote(store, "m", one, signature, ReleaseConfig(), "ada")
    assert champion(store, "m") is None


def test_an_eval_of_another_checkpoint_is_refused(store):
    one, two = make_candidate(store, "one", 2.0), make_candidate(store, "two", 1.0)
    with pytest.raises(ReleaseError, match="the eval is of"):
        consider(store, "m", Candidate(one.export, two.evaluate), ReleaseConfig())


def test_the_private_key_is_the_owners_and_enters_no_store(store, home):
    release(store, make_candidate(store, "one", 2.0))
    private, public = keys()
    assert private.is_relative_to(home)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(private.parent.stat().st_mode) == 0o700
    secret = private.read_bytes().splitlines()[1]
    assert not any(secret in store.read(key) for key in store.keys(""))
    assert b"PRIVATE" not in public.read_bytes()


def test_the_ref_tells_what_was_released(store):
    candidate = make_candidate(store, "one", 2.0)
    release(store, candidate)
    value = read_ref(store, "models/m/champion").value
    assert value["digest"] == candidate.export
    assert value == json.loads(store.read("releases/m/000001"))
    assert store.exists(f"cas/{value['signature']}")
