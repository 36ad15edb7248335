"""Federated fine-tuning with LoRA: duals on the adapters alone, and kilobytes per message.

A small transformer is built from a configuration (nothing is downloaded) and `peft` puts low-rank adapters into its attention.
What has requires_grad=False is frozen: it is not sent, has no dual, and every checkpoint names it by its hash.

    pip install fedvra transformers peft
    python examples/lora.py
"""

from __future__ import annotations

import numpy as np
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import fedvra as fv

WORDS, LENGTH, CLASSES = 100, 12, 3


def model() -> torch.nn.Module:
    """A BERT with two layers; in earnest, `from_pretrained(...)` of the model that is to be adapted."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), lora)


def texts(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Made-up sentences: the class is the kind of word that occurs most."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    ids = rng.integers(1, WORDS, (count, LENGTH))
    ids[:, 1::2] = 1 + 10 * labels[:, None] + rng.integers(0, 10, (count, LENGTH // 2))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}, labels


def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs.logits, labels)


def main() -> fv.History:
    history = fv.simulate(
        fv.FedVRA(gamma=0.1, a=5, d=4),
        problem=fv.Supervised(model, loss=loss),
        data=fv.split(texts(600, 0), fv.Dirichlet(0.3), clients=20, seed=0, test=texts(200, 1)),
        sampler=fv.Uniform(5),
        work=fv.Epochs(2),
        lr=0.1,
        batch_size=10,
        rounds=20,
    )
    tuned = history.model()
    total = sum(p.numel() for p in tuned.parameters())
    sent = history.metrics[-1]["bytes_up"] / 5
    print(f"{len(history.x0):,} of {total:,} parameters are trained; {sent / 1024:.1f} KiB per client and round go up")
    first, last = (history.metrics[k]["test_accuracy"] for k in (0, -1))
    print(f"accuracy {first:.1%} after round 1, {last:.1%} after round {len(history.metrics)}")
    print(f"local steps: {history.path}")
    return history


if __name__ == "__main__":
    main()
