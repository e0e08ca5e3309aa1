"""Writes a checkpoint as a model folder that `kvgauge run --model` and transformers load.

    python export.py FOLDER OUT
    python export.py FOLDER OUT --fixture logits.json

FOLDER holds the tokenizer and `checkpoint.pt`. The fixture holds what transformers computes of the written folder in float32.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from model import SLIDING, Config, Context, Probe
from vocabulary import ANSWER, BOS, END, PAD

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


PROMPT = "The text below contains some facts to remember. You will be asked about them afterwards.\n\nText: {}\n\nQuestion: {}"
SENTENCE = "The special number for the {} is {}."
FIXTURE_KEYS = ("southern mitten", "black thimble", "distant necklace", "granite rain", "strange map")


def fixture_prompts() -> list[str]:
    """A short and a longer text; the longer one reaches over many windows."""
    sentences = lambda count: " ".join(SENTENCE.format(FIXTURE_KEYS[i % 5] if i < 5 else f"jug {i}", 1_234_567 + 654_321 * i % 8_000_000)
                                       for i in range(count))
    return [PROMPT.format(sentences(count), f"What is the special number for the {FIXTURE_KEYS[0]}?") + ANSWER for count in (1, 17)]


def fixture(out: Path, path: Path, top: int = 8) -> None:
    """Token ids with the strongest logits behind the last of them, of transformers and of ours, which must agree."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    Config.vocab_size = theirs.config.vocab_size
    ours = Probe()
    kept = load_file(out / "model.safetensors")
    ours.load_state_dict({mine: kept[name].float() for name, mine in names(len(Config.layer_types)).items()})
    cases = []
    for prompt in fixture_prompts():
        ids = tokenizer.encode(BOS + prompt).ids
        padded = ids + [tokenizer.token_to_id(PAD)] * (-len(ids) % Config.sliding_window)
        context = Context(len(padded), Config)
        context.own_bias = torch.zeros(1, len(padded))
        with torch.no_grad():
            logits = theirs(torch.tensor([ids])).logits[0]
            mine = ours(torch.tensor([padded]), torch.arange(len(ids)), context)
        assert torch.allclose(logits, mine, atol=1e-3), float((logits - mine).abs().max())
        values, tokens = logits[-1].topk(top)
        cases.append({"token_ids": ids, "top": [[token, round(value, 5)] for token, value in zip(tokens.tolist(), values.tolist())],
                      "argmax": logits.argmax(-1).tolist()})
    path.write_text(json.dumps({"dtype": "float32", "cases": cases}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--fixture", type=Path)
    options = parser.parse_args()
    write(options.folder, options.out)
    if options.fixture:
        fixture(options.out, options.fixture)


if __name__ == "__main__":
    main()
