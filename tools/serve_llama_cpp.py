#!/usr/bin/env python3
"""Serves a GGUF model with llama.cpp over HTTP on the loopback, with a KV cache of the type asked for.

Needs the package `xllamacpp`, which holds llama.cpp's server; nothing is installed or downloaded here. The log goes to
standard error at the level at which llama.cpp tells type, size and flash attention of its cache. SIGTERM and SIGINT stop it.
"""

import argparse
import signal
import sys
import threading


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a .gguf file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cache-type", default="f16", metavar="TYPE", help="f32, f16, bf16, q8_0, q5_1, q4_0, ... [f16]")
    parser.add_argument("--cache-type-v", metavar="TYPE", help="of the values, where it is another than the keys'")
    parser.add_argument("--flash-attn", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens of all requests together [4096]")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="requests at a time [1]")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of computation [2]")
    parser.add_argument("--no-cache-prompt", action="store_true", help="compute every prompt anew")
    return parser.parse_args()


# Names that other engines use.
ALIASES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def cache_type(xllamacpp, name):
    value = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + ALIASES.get(name, name).upper(), None)
    if value is None:
        sys.exit(f"error: no cache type `{name}` in this llama.cpp")
    return value


def parameters(xllamacpp, args):
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = [args.host]
    params.port = args.port
    params.cache_type_k = cache_type(xllamacpp, args.cache_type)
    params.cache_type_v = cache_type(xllamacpp, args.cache_type_v or args.cache_type)
    attention = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}[args.flash_attn]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_" + attention)
    params.n_ctx = args.context * args.parallel
    params.n_parallel = args.parallel
    params.cpuparams.n_threads = args.threads
    params.cache_prompt = not args.no_cache_prompt
    params.warmup = False
    # The lines on the cache are at this level; the default is one below.
    params.verbosity = 4
    params.endpoint_metrics = params.endpoint_props = params.endpoint_slots = True
    return params


def main():
    args = arguments()
    try:
        import xllamacpp
    except ImportError:
        sys.exit("error: the package xllamacpp is not installed (pip install xllamacpp)")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"xllamacpp {xllamacpp.__version__}", file=sys.stderr, flush=True)
    server = xllamacpp.Server(parameters(xllamacpp, args))
    print(f"serving {args.model} on {server.listening_address}", file=sys.stderr, flush=True)
    stop.wait()


if __name__ == "__main__":
    main()
