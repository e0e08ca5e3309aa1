#!/usr/bin/env python3
"""Measures this engine and llama.cpp on the same GGUF file, with the same threads, in turns within one run.

    python3 benches/llama_cpp.py [--lengths 2048,7936] [--threads 2] [--rounds 3] [--kvgauge target/release/kvgauge]

llama.cpp comes from the `xllamacpp` wheel, installed with pip into a virtual environment (--venv), and is driven as a server
on 127.0.0.1: `prompt_per_second` and `predicted_per_second` of its own timings, so that HTTP does not count. Both engines
start cold in every round; within a round kvgauge and llama.cpp take turns at going first. Medians are compared.

What is and is not the same: prompts are random tokens of the same number on both sides; kvgauge computes with BF16 weights
unpacked from the file, llama.cpp with the file's own quantization (and a BF16 or F16 cache, as --cache-type says).
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# Seconds: 8K tokens at 20 tokens a second, twice.
REQUEST_TIMEOUT = 900
# A server's reply to a completion of a few tokens is a few kilobytes.
MAX_REPLY_BYTES = 16 * 1024 * 1024


def parse_arguments():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kvgauge"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf",
                        help="a GGUF file [default: the built-in model in kvgauge's cache]")
    parser.add_argument("--kvgauge", type=pathlib.Path, default=ROOT / "target" / "release" / "kvgauge")
    parser.add_argument("--venv", type=pathlib.Path, default=cache / "llama_cpp_venv",
                        help="virtual environment for xllamacpp; made if it does not exist")
    parser.add_argument("--lengths", default="2048,7936", help="prompt tokens, a comma list; with the answer within the length trained for")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache-type", choices=["f16", "bf16"], default="f16", help="K and V of llama.cpp")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--serve-one", help=argparse.SUPPRESS)  # JSON: this process measures llama.cpp once
    arguments = parser.parse_args()
    arguments.lengths = [int(length) for length in str(arguments.lengths).split(",")]
    if min(arguments.lengths) < 1 or arguments.rounds < 1 or arguments.threads < 1 or arguments.decode_tokens < 1:
        parser.error("lengths, rounds, threads and decode tokens are at least 1")
    return arguments


def python_with_xllamacpp(folder):
    """The interpreter of a virtual environment that has the wheel."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print(f"making a virtual environment in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import xllamacpp"], capture_output=True).returncode != 0:
        print("installing xllamacpp", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "xllamacpp"], check=True)
    return python


def serve_one(task):
    """Runs inside the virtual environment: one server, every length once, timings as JSON on standard output."""
    import xllamacpp

    decode_tokens = task["decode_tokens"]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = task["model"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = 1
    parameters.n_ctx = max(task["lengths"]) + decode_tokens + 64
    parameters.cpuparams.n_threads = task["threads"]
    parameters.cpuparams_batch.n_threads = task["threads"]
    parameters.cache_type_k = parameters.cache_type_v = getattr(
        xllamacpp.ggml_type, f"GGML_TYPE_{task['cache_type'].upper()}")
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    parameters.warmup = True
    server = xllamacpp.Server(parameters)

    def post(body):
        request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT) as reply:
            return json.loads(reply.read(MAX_REPLY_BYTES))

    randomness = random.Random(7)
    results = []
    for length in task["lengths"]:
        prompt = [randomness.randrange(1000, 40000) for _ in range(length)]
        body = {"prompt": prompt, "n_predict": decode_tokens + 1, "temperature": 0, "ignore_eos": True,
                "cache_prompt": False}
        timings = post(body)["timings"]
        if timings["prompt_n"] != length:
            raise SystemExit(f"llama.cpp computed {timings['prompt_n']} of {length} prompt tokens")
        results.append({"length": length, "prefill": timings["prompt_per_second"],
                        "decode": timings["predicted_per_second"]})
    print("RESULT " + json.dumps(results), flush=True)
    os._exit(0)  # the server's threads have no end of their own


def measure_llama(python, arguments):
    task = {"model": str(arguments.model), "lengths": arguments.lengths, "threads": arguments.threads,
            "decode_tokens": arguments.decode_tokens, "cache_type": arguments.cache_type}
    command = [python, __file__, "--serve-one", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"llama.cpp gave no result:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1][len("RESULT "):])


def measure_kvgauge(arguments):
    lengths = ",".join(str(length) for length in arguments.lengths)
    command = [arguments.kvgauge, "bench", "--json", "--model", arguments.model, "--threads", str(arguments.threads),
               "--lengths", lengths, "--kv-cache-dtype", "bfloat16", "--batch", "1", "--repeats", "1",
               "--decode-tokens", str(arguments.decode_tokens)]
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        if done.returncode != 0:
            errors.seek(0)
            raise SystemExit(f"kvgauge gave no result:\n{errors.read()[-2000:]}")
    document = json.loads(done.stdout)
    results = [{"length": cell["length"], "prefill": cell["prefill"]["median"],
                "decode": cell["decode"][0]["rate"]["median"], "share_of_peak": cell["share_of_peak"]}
               for cell in document["cells"]]
    return results, document


def load_average():
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else []


def median_of(rounds, length, key):
    return statistics.median(cell[key] for cells in rounds for cell in cells if cell["length"] == length)


def table(result):
    rows = [["tokens", "what", "kvgauge tok/s", "llama.cpp tok/s", "ratio"]]
    for length in result["lengths"]:
        for key in ("prefill", "decode"):
            ours = median_of(result["kvgauge_rounds"], length, key)
            theirs = median_of(result["llama_cpp_rounds"], length, key)
            rows.append([str(length), key, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"])
    return rows


def markdown(result):
    rows = table(result)
    lines = [f"# kvgauge and llama.cpp, {result['date']}", "",
             f"- CPU: {result['cpu']}, {result['threads']} threads",
             f"- load average before {result['load_average_before']}, after {result['load_average_after']}",
             f"- model file: {result['model']}; kvgauge {result['kvgauge_version']} ({result['kernel']}, BF16 cache), "
             f"xllamacpp {result['xllamacpp_version']} ({result['cache_type'].upper()} cache)",
             f"- medians of {result['rounds']} rounds in turns; {result['decode_tokens']} tokens decoded after each prompt",
             f"- command: `{result['command']}`", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(row) + " |" for row in rows[1:]]
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    if arguments.serve_one:
        serve_one(json.loads(arguments.serve_one))
    for path in (arguments.model, arguments.kvgauge):
        if not path.is_file():
            raise SystemExit(f"{path} is not there: build with `cargo build --release`, and `kvgauge bench` once fetches the model")
    python = python_with_xllamacpp(arguments.venv)
    version = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('xllamacpp'))"],
                             capture_output=True, text=True, check=True).stdout.strip()
    before, ours, theirs, document = load_average(), [], [], {}
    for index in range(arguments.rounds):
        for engine in (("kvgauge", "llama.cpp") if index % 2 == 0 else ("llama.cpp", "kvgauge")):
            print(f"round {index + 1}/{arguments.rounds}: {engine}", file=sys.stderr, flush=True)
            if engine == "kvgauge":
                cells, document = measure_kvgauge(arguments)
                ours.append(cells)
            else:
                theirs.append(measure_llama(python, arguments))
    cpu = document["machine"].get("cpu", platform.processor())
    shown = ["--lengths", ",".join(map(str, arguments.lengths)), "--threads", str(arguments.threads), "--rounds",
             str(arguments.rounds), "--decode-tokens", str(arguments.decode_tokens), "--cache-type", arguments.cache_type]
    result = {
        "format_version": 1, "date": datetime.date.today().isoformat(), "cpu": cpu, "threads": arguments.threads,
        "load_average_before": before, "load_average_after": load_average(), "model": arguments.model.name,
        "kvgauge_version": document["kvgauge_version"], "kernel": document["kernel"],
        "peak_gflops": document["peak_gflops"], "xllamacpp_version": version, "cache_type": arguments.cache_type,
        "lengths": arguments.lengths, "rounds": arguments.rounds, "decode_tokens": arguments.decode_tokens,
        "command": " ".join(["python3", "benches/llama_cpp.py", *shown]),
        "kvgauge_rounds": ours, "llama_cpp_rounds": theirs,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    slug = "-".join("".join(c.lower() if c.isalnum() else " " for c in cpu).split())[:60]
    stem = arguments.results / f"{result['date']}-{slug}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    stem.with_suffix(".md").write_text(markdown(result))
    rows = table(result)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
    print(f"written: {stem}.json, {stem}.md", file=sys.stderr)


if __name__ == "__main__":
    main()
