import pytest
import torch
import torch.nn.functional as F

from edlm import products
from edlm.models.transformer import Transformer, TransformerConfig
from edlm.randomness import make_generator

needs_onednn = pytest.mark.skipif(not products.HAS_ONEDNN, reason="this PyTorch has no oneDNN")
SIZE = TransformerConfig(vocab_size=27, length=300, num_layers=2, num_heads=2, width=128, dropout=0.0)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=make_generator(seed))


@pytest.fixture
def taken(monkeypatch):
    """How often oneDNN was asked; also for attention over few positions."""
    monkeypatch.setattr(products, "LEAST_ATTENTION", products.LEAST_WORK)
    calls, product = [], products._product
    monkeypatch.setattr(products, "_product", lambda *a, **kw: (calls.append(1), product(*a, **kw))[1])
    return calls


STRIDED = {
    "rows": lambda: normal(5, 70, 96),
    "transposed": lambda: normal(5, 96, 70).transpose(1, 2),
    "every other": lambda: normal(350, 192)[:, ::2],
    "repeated": lambda: normal(1, 96).expand(350, 96),
    "turned": lambda: normal(96, 350).t(),
}


@needs_onednn
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", STRIDED)
def test_a_linear_layer_is_pytorchs_however_its_input_lies(layout, bias, gelu, taken):
    x, layer = STRIDED[layout](), products.Linear(96, 80, bias, gelu=gelu)
    with torch.no_grad():
        y = layer(x)
        plain = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    assert taken and y.shape == plain.shape and y.is_contiguous()
    torch.testing.assert_close(y.double(), F.gelu(plain, approximate="tanh") if gelu else plain, rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("layout", STRIDED)
def test_its_gradients_are_pytorchs(layout, gelu, taken):
    x, layer = STRIDED[layout](), products.Linear(96, 80, gelu=gelu)

    def gradients():
        inputs = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        loss = layer(inputs).sum() + layer(inputs).pow(2).mean()  # the gradient of a sum is one number, repeated
        return torch.autograd.grad(loss, [inputs, layer.weight, layer.bias])

    ours, num = gradients(), len(taken)
    with products.of_pytorch():
        plain = gradients()
    assert num == len(taken) == 6
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_only_the_gradients_that_are_needed_are_made(taken):
    layer = products.Linear(96, 80)
    layer(normal(350, 96)).sum().backward()
    assert len(taken) == 2 and layer.bias.grad is not None  # forward, and the gradient of the weights
    layer.requires_grad_(False)
    x = normal(350, 96).requires_grad_()
    layer(x).sum().backward()
    assert len(taken) == 4 and x.grad is not None


@needs_onednn
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("length", [250, 256, 257, 600])
def test_attention_is_pytorchs_whatever_the_length(length, is_causal, taken):
    q, k, v = normal(2, length, 3, 2, 64).permute(2, 0, 3, 1, 4)
    with torch.no_grad():
        y = products.attention(q, k, v, is_causal=is_causal)
    plain = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=is_causal)
    assert taken and y.shape == q.shape
    torch.testing.assert_close(y.double(), plain, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_queries_may_be_fewer_than_keys(taken):
    q, k, v = normal(1, 2, 256, 16), *normal(2, 1, 2, 700, 16, seed=1)
    with torch.no_grad():
        y = products.attention(q, k, v)
    assert taken
    torch.testing.assert_close(y, F.scaled_dot_product_attention(q, k, v), rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("causal", [True, False])
def test_a_network_says_the_same_with_either_products_and_learns_the_same(causal, taken):
    torch.manual_seed(0)
    model, tokens = Transformer(SIZE, causal=causal), torch.randint(27, (3, 300), generator=make_generator(0))
    with torch.no_grad():
        hidden = model(tokens)
    assert len(taken) > 2 * 4 + 2 * 2 * 3 * 2  # all layers and the attention of every head
    model.head(model(tokens)).logsumexp(-1).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with products.of_pytorch():
        model.head(model(tokens)).logsumexp(-1).sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(hidden, model(tokens), rtol=1e-4, atol=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-3, atol=1e-3 * float(p.grad.abs().max()))


def test_what_onednn_has_nothing_to_give_for_is_left_to_pytorch(taken):
    x, layer = normal(350, 96), products.Linear(96, 80)
    with torch.no_grad():
        layer(x[:10])
        layer.double()(x.double())
        layer.bfloat16()(x.bfloat16())
        layer.float()
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        with products.of_pytorch():
            layer(x)
        q, mask = normal(1, 1, 256, 64), torch.ones(256, 256, dtype=torch.bool).tril()
        products.attention(q, q, q, attn_mask=mask)
    q.requires_grad_()
    products.attention(q, q, q).sum().backward()
    assert not taken and q.grad is not None


def test_comparing_with_pytorch_ends_with_an_error_too():
    before = products._is_on
    with pytest.raises(RuntimeError), products.of_pytorch():
        assert not products._is_on
        raise RuntimeError
    assert products._is_on == before
