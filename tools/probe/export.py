"""Writes a checkpoint as a model folder that `kvgauge run --model` and transformers load.

    python export.py FOLDER OUT

FOLDER holds the tokenizer and `checkpoint.pt`.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import SLIDING, Config
from vocabulary import BOS, END, PAD

#: Positions matter only inside the window, so any length will do.
MAX_POSITIONS = 1 << 20


def names(layers: int) -> dict[str, str]:
    """Parameter names of SmolLM3 to ours."""
    found = {"model.embed_tokens.weight": "embed_tokens", "model.norm.weight": "norm"}
    for i in range(layers):
        parts = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
        for group, members in parts.items():
            found |= {f"model.layers.{i}.{group}.{name}.weight": f"layers.{i}.{name}" for name in members}
        found |= {f"model.layers.{i}.{name}.weight": f"layers.{i}.{name}"
                  for name in ("input_layernorm", "post_attention_layernorm")}
    return found


def configuration(tokenizer: Tokenizer) -> dict:
    """config.json."""
    layers = Config.layer_types
    return dict(
        architectures=["SmolLM3ForCausalLM"], model_type="smollm3", vocab_size=(tokenizer.get_vocab_size() + 63) // 64 * 64,
        hidden_size=Config.hidden_size, intermediate_size=Config.intermediate_size, num_hidden_layers=len(layers),
        num_attention_heads=Config.num_attention_heads, num_key_value_heads=Config.num_key_value_heads, head_dim=Config.head_dim,
        hidden_act="silu", max_position_embeddings=MAX_POSITIONS, initializer_range=0.02, rms_norm_eps=Config.rms_norm_eps,
        use_cache=True, bos_token_id=tokenizer.token_to_id(BOS), eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD), tie_word_embeddings=True, attention_bias=False, attention_dropout=0.0,
        mlp_bias=False, rope_theta=Config.rope_theta, rope_parameters=dict(rope_type="default", rope_theta=Config.rope_theta),
        use_sliding_window=True, sliding_window=Config.sliding_window, layer_types=layers,
        no_rope_layers=[int(kind == SLIDING) for kind in layers], no_rope_layer_interval=1000, torch_dtype="bfloat16")


def write(folder: Path, out: Path) -> None:
    """The model folder of the checkpoint in `folder`."""
    out.mkdir(parents=True, exist_ok=True)
    kept = torch.load(folder / "checkpoint.pt")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = configuration(tokenizer)
    weights = {theirs: kept["model"][ours].to(torch.bfloat16).contiguous()
               for theirs, ours in names(config["num_hidden_layers"]).items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")} | {"do_sample": False}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, out / name)
    files = sorted(path for path in out.iterdir() if path.suffix in (".json", ".safetensors") and path.name != "probe.json")
    facts = dict(kept["history"], parameters=sum(weight.numel() for weight in weights.values()),
                 files={path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in files})
    (out / "probe.json").write_text(json.dumps(facts, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    write(options.folder, options.out)


if __name__ == "__main__":
    main()
