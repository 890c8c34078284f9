"""An example of every command, which stands at the end of its help."""

_SERVER = "'vllm serve Qwen/Qwen3-8B'"

EXAMPLES = {
    "plan": f"--vllm {_SERVER} --traffic chat --qps 20 --gpus h100,l40s --out results/plan",
    "init": "my.yaml",
    "demo": "--out results/demo",
    "capacity": "EXP.yaml --slo ttft:500,tpot:50 --policies off static:k=3 --qps 100",
    "tune": "EXP.yaml --max-k 5 --out results/tune",
    "compare": "EXP.yaml --policies off static:k=3 goodput --out results/cmp",
    "split": "EXP.yaml --gpus 8 --tp 1,2 --policies off static:k=3 --out results/split",
    "gate": "baseline.json suite.yaml --junit gate.xml",
    "run": "EXP.yaml --set policy.k=5 --out results/one",
    "sweep": "SWEEP.yaml --dry-run",
    "serve": "EXP.yaml --port 8000",
    "policy check": "my.py:MyPolicy",
    "report": "results/cmp",
    "ui": "EXP.yaml",
    "plot": "results/cmp --metric p99_ttft_ms --format pdf",
    "timeline": "results/cmp/off --plot timeline.png",
    "breakdown": "results/one --json breakdown.json",
    "export": "results/one --chrome-trace trace.json.gz",
    "calibrate": "--engine torch --device cpu --quick --out results/cal",
    "observe": "--url http://127.0.0.1:8000 --workload EXP.yaml --out run",
    "validate": "run --profile mine.yaml",
    "parity": "tests/parity/recorded/random-0.scenario.json",
    "trace describe": "traces/chat.parquet",
    "trace convert": "traces/chat.parquet chat.jsonl",
    "trace synth": "code.parquet --arrivals gamma:rate=4,burstiness=0.5 "
    "--lengths dataset:name=instructcoder --duration 600",
    "tokens from-text": "chat.jsonl --tokenizer tokenizer.json --out tokens.jsonl.gz",
    "tokens describe": "tokens.jsonl",
    "draft-eval": "--proposer suffix --tokens tokens.jsonl",
    "acceptance fit": "tokens.jsonl.gz --proposer eagle --preset mine.yaml",
    "profile fit": "steps.csv --model llama-3.1-8b --gpu h100 --out mine.yaml",
    "profile show": "h100/llama-3.1-8b",
    "profile build": "--model qwen3-8b --gpu h200 --out mine.yaml",
    "profile roofline": "--model llama-3.1-8b --gpu l40s --out l40s.yaml",
    "list": "policies",
    "schema": "> experiment.schema.json",
}
"""By command: the rest of the line."""


def example(command: str) -> str | None:
    """Return a line to type; None of a command that has none yet."""
    rest = EXAMPLES.get(command)
    return None if rest is None else f"Example: specsim {command} {rest}"
