"""Where and how a network computes: its device, the precision of its weights, and whether it is compiled.

Precision is of weights and hidden states. What leaves a model (log-probabilities, energies) is float32 in any case,
and is summed in float64.
"""

from typing import TypeVar

import torch
from torch import nn

from edlm.compute_config import ComputeConfig
from edlm.errors import UserError
from edlm.models.causal_lm import CausalLM
from edlm.models.energy_network import EnergyNetwork
from edlm.models.masked_lm import MaskedLM
from edlm.models.precision import PRECISIONS, require_holdable

Network = TypeVar("Network", bound=nn.Module)


def choose_device(device: str) -> str:
    """cuda or cpu; auto takes a GPU if there is one, and cuda without one is refused."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no GPU; install a CUDA build or choose cpu")
    return "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"


def choose_precision(precision: str, device: str) -> str:
    """A precision by name; auto is bfloat16 on GPUs that have it, and float32 elsewhere."""
    if precision != "auto":
        return precision
    return "bfloat16" if device == "cuda" and torch.cuda.is_bf16_supported() else "float32"


def precision_of(model: nn.Module) -> str:
    """The precision of a model's weights, by name."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def place(model: Network, compute: ComputeConfig, *, own_precision: bool = False) -> Network:
    """The model where and how it is to compute. With `own_precision` its weights stay as they are: its name said so."""
    device = choose_device(compute.device)
    model.to(device)
    if not own_precision:
        set_precision(model, choose_precision(compute.precision, device))
    if compute.compile:
        compile_network(model)
    return model


def follow(model: Network, leader: nn.Module, *, own_precision: bool = False) -> Network:
    """An energy's model beside the denoiser that it corrects: on its device, in its precision, compiled if it is."""
    model.to(next(leader.parameters()).device)
    if not own_precision:
        set_precision(model, precision_of(leader))
    if is_compiled(leader):
        compile_network(model)
    return model


def set_precision(model: nn.Module, precision: str) -> None:
    """Round the weights; one that would not be finite is refused. A learned energy's last projection stays float32."""
    if precision == precision_of(model):
        return
    require_holdable(model, precision)
    model.to(PRECISIONS[precision])
    if isinstance(model, EnergyNetwork):
        model.transformer.head.float()


def compile_network(model: nn.Module) -> None:
    """Compile what takes the time, for inputs of any size; weights and their names stay as they are."""
    if isinstance(model, MaskedLM):
        raise UserError(f"{model.name} is a masked model from elsewhere, which is not compiled; leave out --compile")
    for part in compiled_parts(model):
        part.compile(dynamic=True)


def compiled_parts(model: nn.Module) -> list[nn.Module]:
    """The blocks of a network of ours, which all share one compiled function, or the body of a causal one."""
    return [model.network.base_model] if isinstance(model, CausalLM) else list(model.transformer.blocks)  # type: ignore[arg-type, union-attr]


def is_compiled(model: nn.Module) -> bool:
    return any(part._compiled_call_impl is not None for part in model.modules())
