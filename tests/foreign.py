"""Tiny models of other projects: causal and masked ones of `transformers`, and a folder with code of its own."""

import json
import shutil

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "##s", "ran"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def causal_model(kind, vocab_size, context=64):
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": context, "initializer_range": 0.5}
        return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **sizes)).eval()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"max_position_embeddings": context, "initializer_range": 0.5}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **sizes, **more)).eval()


def save_causal(folder, kind, tokenizer, *, rows=None, context=64):
    """A causal model with as many rows as its tokenizer has tokens, or more."""
    causal_model(kind, rows or tokenizer.vocab_size, context).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def masked_model(kind, vocab_size):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    common = sizes | {"vocab_size": vocab_size, "max_position_embeddings": 24, "initializer_range": 0.5}
    if kind == "bert":
        return BertForMaskedLM(BertConfig(**common)).eval()
    if kind == "roberta":
        return RobertaForMaskedLM(RobertaConfig(**common, pad_token_id=0, type_vocab_size=1)).eval()
    tokens = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    return ModernBertForMaskedLM(ModernBertConfig(**common, **tokens)).eval()


def word_pieces():
    """A lower-casing WordPiece tokenizer of a few words, with [CLS] and [SEP] around a text."""
    vocabulary = {token: id for id, token in enumerate(SPECIAL + WORDS)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, mask_token="[MASK]", **names)


def save_masked(folder, kind="bert", *, rows=None):
    """A masked model with a few words for tokens, and perhaps padding rows."""
    tokenizer = word_pieces()
    masked_model(kind, rows or len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


CODE = """
import torch
from transformers import BertConfig, BertForMaskedLM, PretrainedConfig, PreTrainedModel


class TinyConfig(PretrainedConfig):
    model_type = "tiny-diffusion"


class TinyDiffusion(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        self.inner = BertForMaskedLM(
            BertConfig(vocab_size=14, max_position_embeddings=24, initializer_range=0.5, **sizes)
        )
        self.post_init()

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def forward(self, input_ids, **_):
        return self.inner(input_ids=input_ids)
"""


def save_with_code(folder):
    """A masked diffusion model that is found by its own code, as LLaDA and Dream are."""
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "modeling_tiny.py").write_text(CODE)
    names = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModel": "modeling_tiny.TinyDiffusion"}
    about = {"model_type": "tiny-diffusion", "architectures": ["TinyDiffusion"], "auto_map": names}
    more = {"mask_token_id": 4, "max_sequence_length": 24}
    (folder / "config.json").write_text(json.dumps(about | more))
    model = masked_model("bert", 14)
    weights = {f"inner.{key}": value.clone() for key, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    word_pieces().save_pretrained(folder)
    return model


def copy_folder(source, target):
    shutil.copytree(source, target)
    return target
