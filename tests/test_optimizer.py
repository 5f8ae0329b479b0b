"""The optimizers by themselves; whole runs with them are in test_training.py."""

import numpy as np
import pytest
import torch

from edlm.models.transformer import Transformer, TransformerConfig
from edlm.training.config import OptimConfig
from edlm.training.optimizer import make_optimizer, orthogonalise
from runs import TINY, assert_same_run, train

SIZE = TransformerConfig(vocab_size=5, length=8, num_layers=2, num_heads=2, width=16)


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 64)])
def test_orthogonalising_keeps_directions_and_brings_singular_values_near_one(shape):
    matrix = torch.from_numpy(np.random.default_rng(0).normal(size=shape)).float()
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    result = u.T @ orthogonalise(matrix) @ v.T
    assert (result.diagonal() > 0.6).all() and (result.diagonal() < 1.3).all()
    assert (result - result.diagonal().diag()).abs().max() < 1e-3


def test_orthogonalising_nothing_gives_nothing():
    assert torch.equal(orthogonalise(torch.zeros(3, 2)), torch.zeros(3, 2))


def stepped(name, num_steps=3, **settings):
    torch.manual_seed(0)
    model = Transformer(SIZE, causal=False)
    optimizer = make_optimizer(model, OptimConfig(name=name, learning_rate=0.01, **settings))
    start = {key: p.detach().clone() for key, p in model.named_parameters()}
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return start, dict(model.named_parameters())


def test_muon_moves_the_matrices_of_the_blocks_and_adamw_the_rest_as_by_itself():
    start, muon = stepped("muon", weight_decay=0.1)
    _, adamw = stepped("adamw", weight_decay=0.1)
    for key, weight in muon.items():
        is_ours = weight.ndim == 2 and "blocks." in key
        assert torch.equal(weight, adamw[key]) != is_ours, key
        assert not torch.equal(weight, start[key])


def test_a_step_of_muon_is_as_large_as_one_of_adam_and_looks_ahead():
    start, moved = stepped("muon", num_steps=1)
    name = "blocks.0.mlp_in.weight"
    step = moved[name] - start[name]
    assert step.square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.2)
    generator = torch.Generator().manual_seed(0)
    gradient = {key: torch.randn(p.shape, generator=generator) for key, p in start.items()}[name]
    # After one step the momentum is a multiple of the gradient, so the direction is the gradient's own.
    torch.testing.assert_close(step, -0.01 * 0.2 * 64**0.5 * orthogonalise(gradient), atol=1e-6, rtol=1e-4)


def test_weight_decay_shrinks_a_matrix_without_gradient_direction():
    start, decayed = stepped("muon", num_steps=1, weight_decay=0.5)
    _, plain = stepped("muon", num_steps=1)
    name = "blocks.1.attention.qkv.weight"
    torch.testing.assert_close(plain[name] - decayed[name], 0.01 * 0.5 * start[name], atol=1e-7, rtol=1e-4)


def test_a_run_with_muon_learns_and_goes_on_after_a_stop_as_if_never_stopped(corpus, tmp_path):
    settings = TINY | corpus | {"optim.name": "muon", "run.preview": 0}
    train("denoiser", tmp_path / "whole", settings)
    train("denoiser", tmp_path / "parts", settings | {"run.steps": 10})
    train("denoiser", tmp_path / "parts", settings)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_muon_refuses_sharded_matrices(corpus, tmp_path, monkeypatch):
    from edlm.errors import UserError
    from edlm.training.config import RunConfig, TrainConfig
    from edlm.training.run import make_arguments

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="muon needs whole matrices"):
        make_arguments(TrainConfig(optim=OptimConfig(name="muon"), run=RunConfig(shard=True)))
