"""A stage: identity, commit, gates, invalidation, racers, and 200 kills."""

import os
import random
import signal
import time
from multiprocessing import get_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.artifacts.canonical import sha256
from bloomery.artifacts.lineage import describe, find, trace
from bloomery.artifacts.manifest import Manifest, read_action
from bloomery.artifacts.refs import RefMovedError, list_refs, move_ref, read_ref
from bloomery.artifacts.run import GateError, MissingInputError, finished, invalidate, run_stage
from bloomery.artifacts.store import LocalStore
from bloomery.config.base import identity
from bloomery.config.run import Execution
from bloomery.errors import BloomeryError
from tests.artifacts.toy import AFTER, GATE, MAKE, PolicyConfig, ToyConfig

fork = get_context("fork")


def quiet(_line: str) -> None: ...


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def check_whole(store, key):
    """What is visible under a key is whole: every output is there, with the bytes that its digest says."""
    manifest = finished(store, key)
    if manifest is not None:
        action = read_action(store, key)
        for name, output in manifest.outputs.items():
            assert sha256(store.read(action.places[name])) == output.digest
    return manifest


def test_a_finished_stage_is_returned_and_its_body_not_loaded(store, monkeypatch):
    first = run_stage(MAKE, ToyConfig(), {}, store, log=quiet)
    monkeypatch.setattr(type(MAKE), "load", lambda self: pytest.fail("the body was loaded"))
    second = run_stage(MAKE, ToyConfig(place="/elsewhere"), {}, store, log=quiet)
    assert (first.hit, second.hit) == (False, True)
    assert first.digest == second.digest
    assert Manifest.from_bytes(store.read(f"manifests/{first.digest}")) == first.manifest


def test_a_manifest_holds_no_clock_host_or_place(store, tmp_path):
    outcome = run_stage(MAKE, ToyConfig(place=str(tmp_path)), {}, store, log=quiet)
    text = outcome.manifest.to_bytes().decode()
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text.replace('"make"', "")
    other = run_stage(MAKE, ToyConfig(), {}, LocalStore(tmp_path / "other"), log=quiet)
    assert other.digest == outcome.digest


@given(
    st.integers(1, 1 << 40), st.integers(1, 1 << 60), st.text(), st.permutations(["a", "b", "c"]), st.data()
)
def test_the_key_depends_on_identity_alone(size, seed, place, names, data):
    digests = {name: sha256(name.encode()) for name in names}
    key = MAKE.spec(ToyConfig(size=size, seed=seed), dict(sorted(digests.items()))).key
    assert MAKE.spec(ToyConfig(seed=seed, size=size, place=place), digests).key == key
    other = data.draw(st.integers(1, 1 << 60).filter(lambda value: value != seed))
    assert MAKE.spec(ToyConfig(size=size, seed=other), digests).key != key
    changed = digests | {names[0]: sha256(b"other")}
    assert MAKE.spec(ToyConfig(size=size, seed=seed), changed).key != key


def test_libraries_and_version_enter_the_key():
    from dataclasses import replace

    keys = {
        stage.spec(ToyConfig(), {}).key
        for stage in (MAKE, replace(MAKE, version=2), replace(MAKE, libraries=("pydantic",)))
    }
    assert len(keys) == 3


def test_a_missing_input_is_named(store):
    with pytest.raises(MissingInputError, match=r"after needs make\.left"):
        run_stage(AFTER, ToyConfig(), {}, store, log=quiet)


def test_a_stage_waits_for_a_passing_verdict_under_todays_policy(store):
    upstream = {"make": run_stage(MAKE, ToyConfig(), {}, store, log=quiet).digest}

    def after(policy):
        return run_stage(AFTER, ToyConfig(), upstream, store, policies={"gate": policy}, log=quiet)

    with pytest.raises(GateError, match="there is none"):
        after(PolicyConfig())
    upstream["gate"] = run_stage(GATE, PolicyConfig(most=1), upstream, store, log=quiet).digest
    with pytest.raises(GateError, match="left has 96 bytes, allowed 1"):
        after(PolicyConfig(most=1))
    with pytest.raises(GateError, match="another policy"):
        after(PolicyConfig(most=100))
    failed = upstream["gate"]
    upstream["gate"] = run_stage(GATE, PolicyConfig(most=100), upstream, store, log=quiet).digest
    made = after(PolicyConfig(most=100))
    assert not made.hit
    # a tightened policy blocks a finished result, and a waiver lets it pass: it is not made again
    upstream["gate"] = failed
    with pytest.raises(GateError):
        after(PolicyConfig(most=1))
    move_ref(store, f"waivers/{failed}", {"digest": failed, "reason": "known"}, None)
    assert after(PolicyConfig(most=1)) == type(made)(made.manifest, hit=True)


def test_a_verdict_on_other_data_does_not_count(store):
    upstream = {"make": run_stage(MAKE, ToyConfig(), {}, store, log=quiet).digest}
    upstream["gate"] = run_stage(GATE, PolicyConfig(most=100), upstream, store, log=quiet).digest
    upstream["make"] = run_stage(MAKE, ToyConfig(seed=2), {}, store, log=quiet).digest
    with pytest.raises(GateError, match="other data"):
        run_stage(AFTER, ToyConfig(), upstream, store, policies={"gate": PolicyConfig(most=100)}, log=quiet)


def test_invalidate_leaves_a_tombstone_and_the_next_run_computes_again(store):
    first = run_stage(MAKE, ToyConfig(), {}, store, log=quiet)
    key = first.manifest.spec.key
    invalidate(store, key, "the disk was bad")
    assert finished(store, key) is None
    assert any(b"the disk was bad" in store.read(name) for name in store.keys(f"runs/{key}/invalidated"))
    with pytest.raises(MissingInputError):
        invalidate(store, key, "twice")
    again = run_stage(MAKE, ToyConfig(), {}, store, log=quiet)
    assert (again.hit, again.digest) == (False, first.digest)


def test_a_hit_counts_only_while_its_outputs_exist(store):
    first = run_stage(MAKE, ToyConfig(), {}, store, log=quiet)
    store.remove(read_action(store, first.manifest.spec.key).places["right"])
    again = run_stage(MAKE, ToyConfig(), {}, store, log=quiet)
    assert (again.hit, again.digest) == (False, first.digest)


def test_lineage_and_description(store):
    upstream = {"make": run_stage(MAKE, ToyConfig(), {}, store, log=quiet).digest}
    upstream["gate"] = run_stage(GATE, PolicyConfig(most=100), upstream, store, log=quiet).digest
    policies = {"gate": PolicyConfig(most=100)}
    made = run_stage(AFTER, ToyConfig(), upstream, store, policies=policies, log=quiet)
    node = trace(store, find(store, made.digest[:12]))
    assert (node.stage, node.sources["left"].stage) == ("after", "make")
    assert describe(store, made.digest)["spec"]["inputs"] == {"left": made.manifest.spec.inputs["left"]}
    with pytest.raises(BloomeryError, match="no ref or manifest"):
        find(store, "ffff")


def test_refs_move_by_compare_and_swap_only(store):
    move_ref(store, "models/demo/champion", {"digest": "1"}, None)
    first = read_ref(store, "models/demo/champion")
    move_ref(store, "models/demo/champion", {"digest": "2"}, first)
    with pytest.raises(RefMovedError):
        move_ref(store, "models/demo/champion", {"digest": "3"}, first)
    with pytest.raises(RefMovedError):
        move_ref(store, "models/demo/champion", {"digest": "3"}, None)
    assert [(ref.name, ref.value["digest"]) for ref in list_refs(store, "models/")] == [
        ("models/demo/champion", "2")
    ]


def _run(root, lease, results):
    outcome = run_stage(MAKE, ToyConfig(size=1000), {}, LocalStore(root), log=quiet, lease=lease)
    if results is not None:
        results.put((outcome.digest, outcome.hit))


def test_eight_racers_agree_and_one_computes(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_PAUSE", "0.05")
    monkeypatch.setenv("TOY_RUNS", str(tmp_path / "runs"))
    results = fork.Queue()
    racers = [fork.Process(target=_run, args=(tmp_path / "store", 20.0, results)) for _ in range(8)]
    for racer in racers:
        racer.start()
    answers = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    assert len({digest for digest, _ in answers}) == 1
    assert [hit for _, hit in answers].count(False) == 1
    assert (tmp_path / "runs").read_text().count("\n") == 1


def test_racers_without_a_working_claim_still_agree(tmp_path, monkeypatch):
    """Correctness never rests on the claim: with a lease of nothing all compute, and one commit wins."""
    monkeypatch.setenv("TOY_PAUSE", "0.05")
    results = fork.Queue()
    racers = [fork.Process(target=_run, args=(tmp_path / "store", 0.0, results)) for _ in range(8)]
    for racer in racers:
        racer.start()
    answers = [results.get(timeout=60) for _ in racers]
    assert len({digest for digest, _ in answers}) == 1
    check_whole(LocalStore(tmp_path / "store"), MAKE.spec(ToyConfig(size=1000), {}).key)


def test_200_kills_leave_nothing_partial_and_a_rerun_converges(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_PAUSE", "0.002")
    expected = run_stage(MAKE, ToyConfig(size=1000), {}, LocalStore(tmp_path / "clean"), log=quiet).digest
    key = MAKE.spec(ToyConfig(size=1000), {}).key
    chance = random.Random(20260101)
    span, seen = 0.1, {"before": 0, "committed": 0}
    for number in range(200):
        root = tmp_path / f"store-{number % 4}"  # kills meet the leftovers of kills before
        store = LocalStore(root)
        victim = fork.Process(target=_run, args=(root, 20.0, None))
        victim.start()
        time.sleep(chance.uniform(0, span))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        manifest = check_whole(store, key)
        seen["committed" if manifest else "before"] += 1
        span *= (
            0.85 if manifest else 1.15
        )  # whatever the machine's pace, kills fall on both sides of the commit
        if manifest or number % 4 == 3:
            assert run_stage(MAKE, ToyConfig(size=1000), {}, store, log=quiet).digest == expected
            check_whole(store, key)
            invalidate(store, key, "next round")
    assert min(seen.values()) > 40, f"the kills did not fall on both sides of the commit: {seen}"


def test_a_dead_holder_is_taken_over_at_once_and_a_silent_one_after_its_lease(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_PAUSE", "30")
    victim = fork.Process(target=_run, args=(tmp_path / "store", 20.0, None))
    victim.start()
    store = LocalStore(tmp_path / "store")
    while not (claims := list(store.keys("claims/"))):
        time.sleep(0.01)
    with store._lock(claims[0]):  # not while it holds the lock of the claim, which it has just written
        os.kill(victim.pid, signal.SIGSTOP)
    monkeypatch.setenv("TOY_PAUSE", "0")
    began = time.monotonic()
    outcome = run_stage(MAKE, ToyConfig(size=1000), {}, LocalStore(tmp_path / "store"), log=quiet, lease=1.5)
    assert 1.5 < time.monotonic() - began < 10
    assert not outcome.hit
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    invalidate(LocalStore(tmp_path / "store"), outcome.manifest.spec.key, "again")
    monkeypatch.setenv("TOY_PAUSE", "30")
    victim = fork.Process(target=_run, args=(tmp_path / "store", 20.0, None))
    victim.start()
    time.sleep(0.5)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    monkeypatch.setenv("TOY_PAUSE", "0")
    began = time.monotonic()
    run_stage(MAKE, ToyConfig(size=1000), {}, LocalStore(tmp_path / "store"), log=quiet)
    assert time.monotonic() - began < 5


def test_execution_has_no_identity():
    assert identity(Execution()) == {}
