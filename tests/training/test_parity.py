"""Every legal mesh trains as one process does: the same losses and norms, replicas that stay the same, and
what is legal is what is proven here."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from bloomery.config.model import ModelConfig, MoeConfig
from bloomery.config.parallel import ParallelConfig, refusals
from tests.training.ranks import forked
from tests.training.test_ranks import one_process
from tests.training.world import TINY
from training import engine as engine_module
from training.engine import Engine
from training.loader import Loader
from training.loop import Run, _gathered
from training.mesh import Mesh
from training.parallel import start_engine
from training.resume import choose

DENSE = TINY.model_copy(
    update={"model": ModelConfig(layers=2, width=40, heads=4, kv_heads=4, ffn_width=51, qk_norm=True)}
)
"""Odd sizes, so that shards are uneven and fragments cut rows; tied embeddings."""
DEEP = DENSE.model_copy(update={"model": DENSE.model.model_copy(update={"layers": 4})})
UNTIED = DENSE.model_copy(update={"model": DENSE.model.model_copy(update={"tied_embeddings": False})})
EXPERTS = TINY.model_copy(
    update={
        "model": DENSE.model.model_copy(
            update={
                "qk_norm": False,
                "moe": MoeConfig(experts=4, top_k=2, ffn_width=24, shared_experts=1, dense_layers=1),
            }
        )
    }
)
BIASED = EXPERTS.model_copy(
    update={
        "model": EXPERTS.model.model_copy(
            update={"moe": EXPERTS.model.moe.model_copy(update={"bias_rate": 0.01, "balance_weight": 1e-4})}
        )
    }
)

CELLS = {
    **{f"dp{n} z{z}": (DENSE, {"ranks": n, "zero_stage": z}) for n in (1, 2, 4) for z in (0, 1, 2, 3)},
    **{f"tp2 z{z}": (DENSE, {"ranks": 2, "tensor": 2, "zero_stage": z}) for z in (0, 1, 2, 3)},
    **{f"tp2 dp2 z{z}": (UNTIED, {"ranks": 4, "tensor": 2, "zero_stage": z}) for z in (0, 1, 2, 3)},
    "tp2 z-loss": (DENSE.model_copy(update={"z_loss": 1e-2}), {"ranks": 2, "tensor": 2}),
    "sp2 z-loss": (DENSE.model_copy(update={"z_loss": 1e-2}), {"ranks": 2, "sequence": 2}),
    "tp4": (DENSE, {"ranks": 4, "tensor": 4}),
    "pp2": (DENSE, {"ranks": 2, "pipeline": 2}),
    "pp2 untied": (UNTIED, {"ranks": 2, "pipeline": 2}),
    "pp4": (DEEP, {"ranks": 4, "pipeline": 4}),
    "pp2 dp2": (DENSE, {"ranks": 4, "pipeline": 2}),
    "pp2 tp2": (DENSE, {"ranks": 4, "pipeline": 2, "tensor": 2}),
    **{f"sp2 z{z}": (DENSE, {"ranks": 2, "sequence": 2, "zero_stage": z}) for z in (0, 1, 2, 3)},
    **{f"sp2 dp2 z{z}": (UNTIED, {"ranks": 4, "sequence": 2, "zero_stage": z}) for z in (0, 1, 2, 3)},
    "sp4": (DENSE, {"ranks": 4, "sequence": 4}),
    **{f"ep2 z{z}": (EXPERTS, {"ranks": 2, "expert": 2, "zero_stage": z}) for z in (1, 2)},
    **{f"ep2 dp4 z{z}": (EXPERTS, {"ranks": 4, "expert": 2, "zero_stage": z}) for z in (1, 2)},
    "ep4": (EXPERTS, {"ranks": 4, "expert": 4}),
    "experts z3": (EXPERTS, {"ranks": 2, "zero_stage": 3}),
    "experts pp2": (EXPERTS, {"ranks": 2, "pipeline": 2}),
    "biased dp2": (BIASED, {"ranks": 2}),
    "biased ep2 dp4": (BIASED, {"ranks": 4, "expert": 2}),
    "biased pp2 dp2": (BIASED, {"ranks": 4, "pipeline": 2}),
    "biased sp2 z3": (BIASED, {"ranks": 2, "sequence": 2, "zero_stage": 3}),
    "experts sp2": (EXPERTS, {"ranks": 2, "sequence": 2}),
    "recomputed": (DENSE, {"ranks": 2, "recompute": "full"}),
    "recomputed z3": (DENSE, {"ranks": 2, "recompute": "full", "zero_stage": 3}),
    "recomputed pp2 tp2": (DENSE, {"ranks": 4, "pipeline": 2, "tensor": 2, "recompute": "full"}),
    "selective": (DENSE, {"ranks": 2, "recompute": "selective"}),
    **{f"offload z{z}": (DENSE, {"ranks": 2, "offload_optimizer": True, "zero_stage": z}) for z in (1, 2, 3)},
}
BF16 = {
    "bf16 dp2": (DENSE, {"ranks": 2}),
    "bf16 dp2 z2": (DENSE, {"ranks": 2, "zero_stage": 2}),
    "bf16 tp2 z3": (DENSE, {"ranks": 2, "tensor": 2, "zero_stage": 3}),
    "bf16 pp2 tp2": (DENSE, {"ranks": 4, "tensor": 2, "pipeline": 2}),
    "bf16 sp2": (DENSE, {"ranks": 2, "sequence": 2}),
    "bf16 ep2": (EXPERTS, {"ranks": 2, "expert": 2}),
}
SLOW = {
    "pp2 tp2 dp2": (DENSE, {"ranks": 8, "pipeline": 2, "tensor": 2}),
    "compiled": (DENSE, {"ranks": 2, "compile": True}),
    "compiled tp2": (DENSE, {"ranks": 2, "tensor": 2, "compile": True}),
}


AGAIN = {
    *(f"{axis} dp2 z{zero}" for axis in ("tp2", "sp2") for zero in (0, 2, 3)),
    *("dp4 z2", "dp4 z3", "pp4", "ep2 dp4 z2", "biased sp2 z3", "biased pp2 dp2", "experts z3"),
    *(
        "recomputed z3",
        "recomputed pp2 tp2",
        "offload z1",
        "offload z3",
        "bf16 dp2 z2",
        "bf16 pp2 tp2",
        "bf16 sp2",
    ),
}
"""Left to `make test-parity`: each of their axes and stages is in another cell, too."""


def cells(table):
    marks = {name: [pytest.mark.slow] if name in AGAIN else [] for name in table}
    rows = [pytest.param(*about, id=name, marks=marks[name]) for name, about in table.items()]
    return pytest.mark.parametrize(("train", "mesh"), rows)


def prove(ranks, train, mesh, spoil=lambda patch: None):
    """20 clipped steps on a mesh against one process; returns the greatest difference of a loss.

    `spoil` changes something on each rank before it starts.
    """
    parallel = ParallelConfig(micro_batch=2, device="cpu", **mesh)
    assert not refusals(train, parallel)
    job = ranks.job(train, parallel)

    def body(rank):
        start_engine("cpu")
        spoil(pytest.MonkeyPatch())
        run = Run.start(job, rank, parallel.ranks)
        held_out = [run.held_out().nats]
        for step in range(20):
            if step == 14:
                run.snapshot(stored=True)
                run.saver.wait()
            run.advance(stop=False)
        held_out.append(run.held_out().nats)
        about = {
            "losses": run.losses,
            "norms": run.grad_norms,
            "receipt": run.receipt.now,
            "held_out": held_out,
            "weights": hashes(run),
        }
        take_back(run, ranks)
        while run.step < 20:
            run.advance(stop=False)
        assert (run.losses, hashes(run)) == (about["losses"], about["weights"]), "it resumes as another run"
        (job.logs / f"{rank}.json").write_text(json.dumps(about))

    assert forked(parallel.ranks, job.logs, body) == [None] * parallel.ranks
    found = [json.loads((job.logs / f"{rank}.json").read_text()) for rank in range(parallel.ranks)]
    losses, norms, receipt, _ = one_process(job)
    assert min(norms) > train.clip, "no step was clipped"
    for name in ("losses", "norms", "receipt", "held_out"):
        assert all(other[name] == found[0][name] for other in found), f"ranks differ in {name}"
    weights: dict[str, str] = {}
    for other in found:
        for name, digest in other["weights"].items():
            assert weights.setdefault(name, digest) == digest, f"replicas of {name} drift apart"
    assert found[0]["receipt"] == receipt
    near = (
        (1e-3 if train.model.moe else 1e-4) if train.dtype == "fp32" else (0.3 if train.model.moe else 6e-2)
    )
    assert np.allclose(found[0]["norms"], norms, rtol=near), "norms differ"
    assert found[0]["losses"][-1] < found[0]["losses"][0] - 0.4
    assert found[0]["held_out"][1] < found[0]["held_out"][0]
    return float(np.abs(np.array(found[0]["losses"]) - losses).max())


def take_back(run, ranks):
    """Has a running engine go on from the checkpoint that it saved."""
    job = run.job.model_copy(update={"standing": tuple(ranks.standing())})
    chosen = choose(job, run.rank, run.ranks, lambda wrong: _gathered(run.control, run.ranks, wrong))
    run.loader.close()
    replica, data = run.engine.mesh.data, run.loader.data
    run.loader = Loader(data, replica.rank, replica.size, chosen.standing.step)
    run.resume(chosen)


def hashes(run):
    """Of each weight, by its name and the place of this rank's part."""
    found = {}
    for name, weight, place in run.engine.model.places():
        part = weight.ds_tensor if hasattr(weight, "ds_id") else weight
        own = run.rank if hasattr(weight, "ds_id") else ""
        digest = hashlib.sha256(part.detach().float().numpy().tobytes()).hexdigest()
        found[f"{name} {place.offset} {own}"] = digest
    return found


@cells(CELLS)
def test_a_mesh_equals_one_process(ranks, train, mesh, record_property):
    apart = prove(ranks, train, mesh)
    record_property("apart", apart)
    assert apart < (1e-3 if train.model.moe else 1e-5)


def test_a_processor_without_fp16_changes_no_weight(ranks, monkeypatch):
    """Where there is none, DeepSpeed 0.19.8 does not heed the dtype that ZeRO-3's weights are asked in."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda _: False)
    assert prove(ranks, *CELLS["dp1 z3"]) < 1e-5


@cells(BF16)
def test_bf16_is_near_fp32(ranks, train, mesh, record_property):
    """Masters and accumulation are fp32, so only products are rounded."""
    apart = prove(ranks, train.model_copy(update={"dtype": "bf16"}), mesh)
    record_property("apart", apart)
    assert 1e-6 < apart < 2e-2


@pytest.mark.slow
@cells(SLOW)
def test_a_large_mesh_equals_one_process(ranks, train, mesh):
    assert prove(ranks, train, mesh) < 1e-5


def stages_left_out(patch):
    """The norm of the first stage alone, as with ZeRO-0 in a pipeline of DeepSpeed's own."""
    whole = Engine.square_sums
    patch.setattr(Engine, "square_sums", lambda engine: whole(engine) if engine.mesh.first else {})


def groups_from_sizes(patch):
    """Groups of the sequence axis that DeepSpeed makes from its config, which reduce nothing over it."""
    of, config = Mesh.of, engine_module.deepspeed_config
    patch.setattr(Mesh, "of", lambda parallel: of(parallel)._replace(mpu=None))
    sizes = {"sequence_parallel_size": 2, "data_parallel_size": 1}
    patch.setattr(engine_module, "deepspeed_config", lambda *about: config(*about) | sizes)


def loss_of_other_stages(patch):
    """ZeRO-3 divides a gradient's sum by the ranks of a sequence, too."""
    patch.setattr(Engine, "averaged", property(lambda engine: engine.parallel.data))


@pytest.mark.parametrize(
    ("mesh", "spoil", "found"),
    [
        ({"ranks": 2, "pipeline": 2}, stages_left_out, "norms differ"),
        ({"ranks": 2, "sequence": 2}, groups_from_sizes, "elements written, expected"),  # by the first save
        ({"ranks": 2, "sequence": 2, "zero_stage": 3}, loss_of_other_stages, "norms differ"),
    ],
    ids=["F1", "F2", "F3"],
)
def test_what_trains_happily_and_is_wrong_is_found(ranks, mesh, spoil, found):
    """Losses of the first step are right in all three, and all three go down."""
    with pytest.raises(AssertionError, match=found):
        prove(ranks, DENSE, mesh, spoil)
