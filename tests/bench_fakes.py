"""Programs that print what folio-bench and llama-bench would, for tests of what compares them."""
import sys


def write_program(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -IS\nimport json, pathlib, sys\n{body}")
    path.chmod(0o755)
    return path


def folio_bench(path, decode=10.0, prefill=40.0, share=0.96, stall_ms=5.0, log=None, matrix_unit_share=None):
    """A folio-bench of these speeds, whose longest token takes `stall_ms` more than the others; what it is given goes to `log`, a line for each call."""
    return write_program(path, f"""
flags = dict(flag.lstrip("-").split("=") for flag in sys.argv[1:] if "=" in flag)
if {str(log)!r} != "None":
    with open({str(log)!r}, "a") as file:
        print({path.parent.name!r}, *sys.argv[1:], file=file)
print(json.dumps({{"run": {{"model": "fake", "backend": "cpu", "threads": 2, "weights": flags.get("weight_dtype", "bf16"), "kv": "bf16"}}}}))
batch = "streams" in flags
for strategy in ["batch"] if batch else flags["strategies"].split(","):
    for depth in ["1"] if batch else flags["depths"].split(","):
        row = {{"strategy": strategy, "depth": int(depth), "decode_tokens_per_s": {decode}, "decode_mean_tokens_per_s": {decode},
               "decode_longest_ms": {1000 / decode + stall_ms}, "decode_gb_per_s": 20.0,
               "read_gb_per_s": 21.0, "bandwidth_share": {share}, "prefill_tokens_per_s": 0.0, "prefill_gflop_per_s": 0.0,
               "fp32_peak_gflop_per_s": 0.0, "peak_share": 0.0, "peak_rss_bytes": 1}}
        if flags["prefill_tokens"] != "0":
            row |= {{"prefill_tokens_per_s": {prefill}, "fp32_peak_gflop_per_s": 200.0, "peak_share": {share}}}
            if {matrix_unit_share} is not None:
                row |= {{"matrix_unit_gflop_per_s": 5000.0, "matrix_unit_share": {matrix_unit_share}}}
        print(json.dumps(row))
""")


def llama_batched_bench(path, seconds, log=None):
    """A llama-batched-bench whose step takes seconds[format]; a format without seconds makes it fail. That of llama.cpp leaves
    out what does not fit where each stream has room for the prompt, unless it is told to share that; the other has no such flag."""
    return write_program(path, f"""
if {str(log)!r} != "None":
    with open({str(log)!r}, "a") as file:
        print({path.parent.name!r}, *sys.argv[1:], file=file)
args = {{flag: value for flag, value in zip(sys.argv[1:], sys.argv[2:])}}
key = pathlib.Path(args["-m"]).name.rsplit(".", 2)[1] + (" -rtr" if "-rtr" in sys.argv else "")
assert pathlib.Path(args["-m"]).is_file() and "-pps" in sys.argv
if key not in {seconds!r}:
    sys.exit("cannot load " + key)
depth, tokens, streams = (int(args[flag]) for flag in ("-npp", "-ntg", "-npl"))
shared = "-kvu" in sys.argv
assert not shared or {path.parent.name!r} == "llama.cpp"
if int(args["-c"]) < depth * (streams if {path.parent.name!r} == "llama.cpp" and not shared else 1) + streams * tokens:
    sys.exit()
pathlib.Path("llama.log").write_text("a log")
second = {seconds!r}[key]
print("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |", file=sys.stderr)
print(f"| {{depth}} | {{tokens}} | {{streams}} | 0 | 9.0 | 99.0 | {{second * tokens:.3f}} | {{streams / second:.2f}} | 9.0 | 99.0 |",
      file=sys.stderr)
""")


def llama_bench(path, seconds, per_key=0.0, log=None):
    """A llama-bench that takes seconds[format] for a token, and `per_key` for each layer and key before it (twice that with a
    cache of 8 bits); a format without seconds makes it fail."""
    return write_program(path, f"""
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if {str(log)!r} != "None":
    with open({str(log)!r}, "a") as file:
        print({path.parent.name!r}, *sys.argv[1:], file=file)
model = pathlib.Path(args["-m"]).name
assert pathlib.Path(args["-m"]).is_file() and args["-o"] == "json"
depth, tokens = args["-gp"].split(",") if "-gp" in args else (args.get("-d", 0), max(args["-n"], args["-p"], key=int))
key = model.rsplit(".", 2)[1] + (" -rtr" if args.get("-rtr") == "1" else "")
if key not in {seconds!r}:
    sys.exit("cannot load " + key)
layers = 2 if "2-layers" in model else 22
before = int(depth) or int(args["-p"]) / 2
second = {seconds!r}[key] * layers / 22 + {per_key} * layers * before * (2 if args["-ctk"] == "q8_0" else 1)
print(json.dumps([{{"build_commit": "abc1", "build_number": 7, "model_filename": args["-m"], "n_prompt": int(args["-p"]),
                   "n_gen": int(args["-n"]), "samples_ns": [int(1e9 * second * int(tokens))] * int(args["-r"])}}]))
""")
