"""The decoder, and the config that spreads it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from bloomery.config.model import PRESETS, ModelConfig, MoeConfig
from bloomery.config.parallel import ParallelConfig
from bloomery.config.training import TrainConfig
from tests.deployment import ROOT
from tests.training.world import MODEL
from training.loader import IGNORED
from training.model import Decoder, rate_factor
from training.moe import MixtureOfExperts, swiglu
from training.parallel import deepspeed_config, learning_rate
from training.size import Size


def model(**changes):
    made = Decoder(ModelConfig.model_validate({**MODEL.model_dump(), **changes}), 97)
    made.initialise(1)
    return made


def test_no_position_sees_the_future():
    made, ids = model(), torch.randint(0, 97, (2, 16))
    changed = ids.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 97
    before, after = made(ids), made(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_initial_weights_follow_from_the_seed():
    first, second = model().state_dict(), model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = model()
    other.initialise(2)
    assert not torch.equal(other.embedding.weight, first["embedding.weight"])


def test_an_untrained_model_guesses_evenly():
    ids = torch.randint(0, 97, (8, 33))
    made = model()
    loss = made.losses(made(ids[:, :-1]), ids[:, 1:]).mean().item()
    assert loss == pytest.approx(torch.log(torch.tensor(97.0)).item(), abs=0.1)


def test_tied_embeddings_have_no_head():
    assert model().head is None
    assert model(tied_embeddings=False).head.weight.shape == (97, MODEL.width)


def rates(**changes):
    train = TrainConfig(steps=100, warmup_steps=10, learning_rate=1e-3, min_learning_rate=1e-4, **changes)
    return [learning_rate((8 * step, 8), 80, 800, train) for step in range(101)]


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd"])
def test_learning_rate_warms_up_then_falls_to_the_minimum(decay):
    found = rates(decay=decay)
    assert found[0] == pytest.approx(1e-4)
    assert found[9] == found[10] == 1e-3
    assert sorted(found[10:], reverse=True) == found[10:]
    assert found[100] == pytest.approx(1e-4)


def test_the_ways_down():
    assert rates(decay="linear")[55] == pytest.approx(5.5e-4) == rates(decay="cosine")[55]
    assert rates(decay="cosine")[32] > rates(decay="linear")[32]
    wsd = rates(decay="wsd", decay_share=0.2)
    assert wsd[82] == pytest.approx(1e-3) and wsd[91] == pytest.approx(5.5e-4)


def test_a_ramp_of_the_batch_does_not_bend_the_rate():
    train = TrainConfig(steps=100, warmup_steps=10, learning_rate=1e-3, min_learning_rate=1e-4)
    assert learning_rate((400, 2), 80, 800, train) == learning_rate((400, 64), 80, 800, train)


def test_bf16_accumulates_in_fp32():
    config = deepspeed_config(TrainConfig(dtype="bf16"), ParallelConfig(ranks=2, micro_batch=4))
    assert config["train_batch_size"] == 8
    assert config["zero_optimization"]["stage"] == 1
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}


def test_documents_of_a_row_do_not_see_each_other():
    """A row of three documents gives each the logits that it has alone."""
    lengths, made = [7, 1, 13], model(window=5, qk_norm=True)
    ids = torch.randint(0, 97, (2, sum(lengths)))
    positions = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    together = made(ids, positions)
    for part, logits in zip(ids.split(lengths, 1), together.split(lengths, 1), strict=True):
        assert torch.allclose(made(part), logits, atol=1e-6)


def test_a_window_hides_what_is_further_back():
    made, ids = model(window=3, layers=1), torch.randint(0, 97, (1, 12))
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 97
    same = (made(ids) == made(changed)).all(-1)[0].tolist()
    assert same == [position not in {4, 5, 6} for position in range(12)]


FLEX = """
import torch
from training.attention import attend, sight

draw = torch.Generator().manual_seed(1)
rows = [torch.cat([torch.arange(n) for n in lengths]) for lengths in ([50, 78], [1, 2, 125])]
for window in (None, 1, 9):
    q, k, v = (torch.randn(2, heads, 128, 16, generator=draw) for heads in (4, 2, 2))
    one, other = (attend(q, k, v, sight(torch.stack(rows), True, window, flex)) for flex in (False, True))
    assert one.std() > 0.1 and (one - other).abs().max() < 1e-5, window
"""


def test_flex_attention_sees_the_same():
    """What a GPU runs compiled, here uncompiled. In a process of its own: who has imported it cannot fork
    ranks any more."""
    subprocess.run([sys.executable, "-P", "-c", FLEX], check=True, timeout=120, cwd=ROOT)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_as_many_parameters_as_its_size_says(name):
    shape = PRESETS[name]
    with torch.device("meta"):
        made = Decoder(shape.model, shape.vocab_size)
    assert Size.of(shape.model, shape.vocab_size).total == sum(p.numel() for p in made.parameters())


def test_sizes_are_those_that_are_published():
    """Llama 3 (arXiv:2407.21783), Mixtral (arXiv:2401.04088), DeepSeekMoE (arXiv:2401.06066)."""
    sizes = {name: Size.of(shape.model, shape.vocab_size) for name, shape in PRESETS.items()}
    totals = {"8b": 8_030_261_248, "70b": 70_553_706_496, "405b": 405_853_388_800}
    assert {name: sizes[name].total for name in totals} == totals
    billions = {"moe-8x7b": (46.70, 12.88), "moe-16b": (16.38, 2.83)}
    found = {n: (round(sizes[n].total / 1e9, 2), round(sizes[n].active / 1e9, 2)) for n in billions}
    assert found == billions
    small = sizes["125m"]
    assert small.flops(2048) == 6 * small.total + 12 * 12 * 768 * 2048
    assert small.flops(2048, causal=True) == 6 * small.total + 6 * 12 * 768 * 2048


def test_each_token_is_served_by_its_experts():
    """Against the sum written out token by token; with a capacity who comes late is not served."""
    moe = MoeConfig(experts=5, top_k=2, ffn_width=12, shared_experts=1)
    config = ModelConfig.model_validate({**MODEL.model_dump(), "moe": moe})
    layer = MixtureOfExperts(config, moe)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 9, config.width)
    flat = x.flatten(0, 1)
    weights, experts = (layer.router(flat)).softmax(-1).topk(2)
    weights = weights / weights.sum(-1, keepdim=True)

    def served(left: list[int]) -> torch.Tensor:
        rows = []
        for token, row in enumerate(flat):
            out = layer.shared(row)
            for weight, expert in zip(weights[token], experts[token].tolist(), strict=True):
                if left[expert] > 0:
                    left[expert] -= 1
                    out = out + weight * (
                        layer.down[expert] @ swiglu(row, layer.gate[expert], layer.up[expert])
                    )
            rows.append(out)
        return torch.stack(rows).view_as(x)

    assert torch.allclose(layer(x), served([18] * 5), rtol=1e-4, atol=1e-3)
    tight = MixtureOfExperts(config, moe.model_copy(update={"capacity": 0.5}))
    tight.load_state_dict(layer.state_dict())
    assert torch.allclose(tight(x), served([4] * 5), rtol=1e-4, atol=1e-3)
    assert torch.allclose(tight.eval()(x), layer(x))


def test_the_loss_of_balance_is_least_where_all_is_even():
    moe = MoeConfig(experts=4, top_k=1, ffn_width=12)
    made = model(moe=moe)
    made(torch.randint(0, 97, (4, 32)))
    assert 0.9 < made.balance_loss() < 1.1  # of an untrained router
    for layer in made.layers.values():
        layer.ffn.router.weight.detach().zero_()[2] = 1.0
        layer.ffn(torch.rand(2, 8, MODEL.width) + 0.5)
    assert 3.9 < made.balance_loss() <= 4.0  # all are sent to one


def test_mup_keeps_activations_and_the_best_rate_as_width_grows():
    """After some steps of Adam the logits change by as much at four times the width; without muP by more."""

    def moved(width: int, scaling: str) -> float:
        made = model(
            width=width, heads=width // 8, kv_heads=width // 8, ffn_width=2 * width, scaling=scaling,
            mup_base_width=32, tied_embeddings=False,
        )  # fmt: skip
        groups = [
            {"params": [p], "lr": 0.01 * rate_factor(n, made.config)} for n, p in made.named_parameters()
        ]
        optimizer = torch.optim.Adam(groups)
        ids = torch.randint(0, 97, (8, 33), generator=torch.Generator().manual_seed(1))
        before = made(ids).detach()
        for _ in range(5):
            optimizer.zero_grad()
            made.losses(made(ids[:, :-1]), ids[:, 1:]).mean().backward()
            optimizer.step()
        return (made(ids) - before).std().item()

    growth = {scaling: moved(256, scaling) / moved(32, scaling) for scaling in ("mup", "depth")}
    assert 0.5 < growth["mup"] < 2 and growth["depth"] > 1.5 * growth["mup"], growth


def test_z_losses_are_the_squares_of_the_normaliser():
    logits = torch.randn(2, 3, 97)
    squares = model().z_losses(logits, torch.tensor([[1, IGNORED, 2], [3, 4, 5]]))
    own = torch.tensor([[1, 0, 1], [1, 1, 1]])
    assert torch.allclose(squares, own * logits.exp().sum(-1).log() ** 2, atol=1e-5)
