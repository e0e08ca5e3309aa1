"""Exact matches of a model folder per task, length and KV dtype, measured by kvgauge's own engine.

    python evaluate.py --kvgauge kvgauge --bins 512,2K,8K --dtypes bfloat16,fp8_e4m3 MODEL

Documents are of one task, and with `--mixed` of all but `lookalike` together.
"""
from __future__ import annotations

import argparse
import collections
import json
import subprocess
import tempfile
from pathlib import Path

#: Parameters of the tasks by length, as a suite for the probe should have them.
TASKS = {
    "needle": "",
    "lookalike": 'value_kind = "digits"',
    "multiquery": "keys = { 512 = 2, 2K = 4, 8K = 4, 32K = 4, 128K = 4 }",
    "json_extract": "records = 1",
    "enumerate": "count = { 512 = 8, 2K = 16, 8K = 24, 32K = 32, 128K = 32 }",
    "verbatim": "span_tokens = { 512 = 40, 2K = 60, 8K = 120, 32K = 120, 128K = 120 }",
}
RESERVE = {"512": 96, "2K": 192, "8K": 320, "32K": 400, "128K": 400}


def suite(options: argparse.Namespace) -> str:
    """The suite file."""
    text = 'schema_version = 1\nname = "evaluation"\ndescription = "Evaluation of the probe"\n' + f"seed = {options.seed}\n"
    for context in options.bins:
        shared = 2 if context == "512" else 5 if options.mixed else 6
        text += f'[[bins]]\ncontext = "{context}"\nsamples = {options.samples}\noutput_reserve = {RESERVE[context]}\n'
        text += f"shared_prefix = {shared}\nmixed = {str(options.mixed).lower()}\n"
    for task in options.tasks:
        params = TASKS[task]
        if "{" in params:
            name, values = params.split(" = {")
            kept = [pair for pair in values.strip(" }").split(", ") if pair.split(" = ")[0] in options.bins]
            params = f"{name} = {{ {', '.join(kept)} }}"
        if not (options.mixed and task == "lookalike"):
            text += f'[[tasks]]\nkind = "{task}"\nparams = {{ {params} }}\n'
    return text


def records(options: argparse.Namespace, folder: Path) -> dict[str, list[dict]]:
    """Recorded items by KV dtype."""
    (folder / "suite.toml").write_text(suite(options))
    command = [options.kvgauge, "run", "--model", str(options.model), "--suite", str(folder / "suite.toml"), "--threads",
               str(options.threads), "--baseline", "float32", "--kv-cache-dtype", ",".join(options.dtypes), "--run-dir", str(folder / "runs")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed:\n{done.stderr}")
    # Each line ends with its checksum.
    item = lambda line: json.JSONDecoder().raw_decode(line)[0]
    return {path.parent.name: [item(line) for line in path.open(encoding="utf-8")]
            for path in sorted((folder / "runs").glob("*/samples.jsonl"))}


def table(options: argparse.Namespace, found: dict[str, list[dict]]) -> str:
    """Right answers of all, and the mean likelihood of the right answer per token, as a Markdown table."""
    cells: dict = collections.defaultdict(list)
    for dtype, items in found.items():
        for item in items:
            cells[item["task"], dtype, item["bin"]].append(item)
    bins = sorted({where for _, _, where in cells})
    lines = ["| task | KV dtype | " + " | ".join(str(where) for where in bins) + " |", "| --- " * (len(bins) + 2) + "|"]
    for task, dtype in dict.fromkeys((task, dtype) for task, dtype, _ in sorted(cells, key=lambda key: (options.tasks.index(key[0]), key[1]))):
        row = []
        for where in bins:
            items = cells[task, dtype, where]
            if not items:
                row.append("–")
                continue
            right = sum(item["score"]["value"] == 1.0 for item in items)
            nll = sum(item["completion"]["answer_nll"] for item in items) / len(items)
            row.append(f"{right}/{len(items)} ({nll:.3f})")
        lines.append(f"| {task} | {dtype} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def wrong(found: dict[str, list[dict]], count: int) -> str:
    """Some wrong answers beside the right ones."""
    misses = [item for items in found.values() for item in items if item["score"]["value"] < 1.0]
    return "\n".join(f"{item['task']} {item['bin']}: wanted {item['expected_answer']!r}, got {item['completion']['text']!r}" for item in misses[:count])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvgauge", default="kvgauge")
    parser.add_argument("--bins", type=lambda text: text.split(","), default=["512", "2K", "8K"])
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bfloat16"])
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--misses", type=int, default=0, help="wrong answers to show")
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = records(options, Path(folder))
    print(table(options, found))
    if options.misses:
        print(wrong(found, options.misses))


if __name__ == "__main__":
    main()
