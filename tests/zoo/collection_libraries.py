"""Models of transformers and peft, made from configs: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, images, padded_words, words

TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "initializer_range": 0.4,
}

ENDS = {"bos_token_id": 0, "eos_token_id": 0}
PEFT = (".*is_gradient_checkpointing.* is deprecated",)


def quiet(model: nn.Module, checkpointing: str) -> nn.Module:
    """With gradient checkpointing by the non-reentrant kind, the reentrant kind, or none."""
    if checkpointing:
        switch = "activation_checkpointing_enable"  # as versions to come call it
        enable = getattr(model, switch, None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": checkpointing == "reentrant"})
    return model


def bert(dropout: float = 0.0, checkpointing: str = "", adapted: bool = False) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = BertConfig(vocab_size=11, max_position_embeddings=8, num_labels=3, **TINY, **rates)
    model = quiet(BertForSequenceClassification(config), checkpointing)
    if not adapted:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=11, max_position_embeddings=8, n_layers=1, n_heads=2, dim=8, hidden_dim=12, num_labels=3,
        initializer_range=0.4, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return DistilBertForSequenceClassification(config)


def gpt2(dropout: float = 0.0, checkpointing: str = "") -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    config = GPT2Config(
        vocab_size=11,
        n_positions=8,
        n_embd=8,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
        use_cache=False,
        **ENDS,
        **rates,
    )
    return quiet(GPT2LMHeadModel(config), checkpointing)


def llama(checkpointing: str = "") -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=11, max_position_embeddings=8, num_key_value_heads=1, use_cache=False, **ENDS, **TINY
    )
    return quiet(LlamaForCausalLM(config), checkpointing)


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=3, **TINY, **rates))


def logits_loss(out: object, y: Tensor) -> Tensor:
    return F.cross_entropy(out.logits, y)


def own_loss(out: object, _: Tensor) -> Tensor:
    return out.loss


def causal_loss(out: object, y: Tensor) -> Tensor:
    return F.cross_entropy(out.logits.flatten(0, 1), y.flatten(), ignore_index=-100)


def with_labels(n: int) -> tuple[dict[str, Tensor], Tensor]:
    """The labels are among the inputs, and the model works out the loss itself."""
    inputs, targets = padded_words(n)
    return {**inputs, "labels": targets}, targets


def next_of_padded(n: int) -> tuple[dict[str, Tensor], Tensor]:
    inputs, _ = padded_words(n)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    targets = ids.roll(-1, 1).where(mask.roll(-1, 1) == 1, -100)
    targets[:, -1] = -100
    return inputs, targets


def as_input_ids(n: int) -> tuple[dict[str, Tensor], Tensor]:
    ids, targets = words(n)
    return {"input_ids": ids}, targets


def case(name: str, make: Callable[[], nn.Module], data: Callable, loss: Callable, **more: object) -> Case:
    return Case(name, make, data, loss, lr=0.05, single=4, **more)


CASES = [
    case("hf-bert", bert, padded_words, logits_loss),
    case("hf-bert-dropout", lambda: bert(0.1), padded_words, logits_loss),
    case("hf-bert-checkpointing", lambda: bert(checkpointing="plain"), padded_words, logits_loss),
    case("hf-bert-dropout-checkpointing", lambda: bert(0.1, "plain"), padded_words, logits_loss),
    case("hf-bert-own-loss", bert, with_labels, own_loss),
    case("hf-bert-lora", lambda: bert(adapted=True), padded_words, logits_loss, warns=PEFT),
    case("hf-distilbert", distilbert, as_input_ids, logits_loss),
    case("hf-gpt2", gpt2, next_of_padded, causal_loss),
    case("hf-gpt2-dropout", lambda: gpt2(0.1), next_of_padded, causal_loss),
    case("hf-gpt2-checkpointing", lambda: gpt2(checkpointing="plain"), next_of_padded, causal_loss),
    case("hf-gpt2-reentrant", lambda: gpt2(checkpointing="reentrant"), next_of_padded, causal_loss),
    case("hf-llama", llama, next_of_padded, causal_loss),
    case("hf-llama-checkpointing", lambda: llama("plain"), next_of_padded, causal_loss),
    case("hf-vit", vit, images, logits_loss),
]
