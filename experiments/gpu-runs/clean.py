"""Write what others noted of their runs into the columns of a table of measured runs.

    python experiments/gpu-runs/clean.py TABLE.csv FOLDER

The tables of SPECSIM_DATA/gpu-runs are as their sources had them: with remarks beside numbers, and
options of the engine in sentences. `specsim validate` takes the columns of
docs/how-to/calibrate.md, and nothing else in them. The copy of the same name in FOLDER has
`method_as_written` besides, to choose rows by; what no rule knows stays, for specsim to refuse.
"""

import csv
import re
import sys
from pathlib import Path

Row = dict[str, str]

_WITH_REMARK = ("ignore_eos", "max_num_batched_tokens", "prefix_caching")
_UNIFORM = re.compile(r"\d+ \((uniform \d+\.\.\d+)\)")
_SYSTEM = re.compile(r"system (\d+) \+ question (\d+)( growing)? multi-turn")
_METHOD = re.compile(r"(\w+)(?=[\s(,]|$)")
_MAX_TOKENS = re.compile(r"max_tokens\s*=\s*(\d+)")
_SEED = re.compile(r"seed\s*=?\s*(\d+)")
_ASYNC = re.compile(r"async[ _]scheduling\W+(on|off|true|false)", re.I)
_LARGEST_GRAPH = re.compile(r"suffix: max_cudagraph_capture_size (\d+)")
_PROMPTS = {
    "gsm8k": {"64": "715.6", "160": "716.7", "320": "716.2", "512": "716.9"},
    "humaneval": {"64": "206.9", "160": "207.1"},
    "rag_shared_prefix": {"64": "680.08", "160": "697.41"},
}
"""Where isl is empty, by data set and number of requests: the mean of the A100's other rows."""
_NO_NUMBER = ("closed loop", "stages ")  # of request_rate: a loop of clients, or several rates
_UNTOLD = "see repo"


def cleaned(path: Path, folder: Path) -> Path:
    """Write a table as specsim reads it into a folder; return the file."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [_cleaned_row(row) for row in csv.DictReader(stream)]
    out = folder / path.name
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return out


def _cleaned_row(row: Row) -> Row:
    told = {name: cell.strip() for name, cell in row.items()}
    found = {**told, "method_as_written": told.get("method", "")}
    for column, text, pattern in (
        ("max_tokens", "ignore_eos", _MAX_TOKENS),
        ("seed", "dataset", _SEED),
        ("async_scheduling", "other_flags", _ASYNC),
    ):
        match = pattern.search(told.get(text, ""))
        found[column] = told.get(column) or (match[1] if match else "")
    for column in _WITH_REMARK:
        if told.get(column):
            word = re.sub(r"\s*\(.*\)$", "", told[column])
            found[column] = "" if word == _UNTOLD else word
    if told.get("method"):
        match = _METHOD.match(told["method"])
        found["method"] = match[1] if match else ""
    if told.get("request_rate", "").startswith(_NO_NUMBER):
        found["request_rate"] = ""
    for column in ("isl", "osl"):
        if told.get(column):
            found[column] = _lengths(told[column])
    if "isl" in told and not told["isl"]:
        name = told.get("dataset", "").split(" ")[0]
        found["isl"] = _PROMPTS.get(name, {}).get(told.get("num_prompts", ""), "")
    return found | (_counted_by_the_server(told) if "not named" in told.get("gpu", "") else {})


def _counted_by_the_server(told: Row) -> Row:
    """Return the load of a row of /metrics: how many ran, what was cached, how often lookups found.

    Those of n-grams find nothing in most steps of a sequence.
    """
    running, length = float(told["running_mean"]), float(told["isl"])
    cached = round(float(told["prefix_hit_rate"]) * length)
    steps = float(told["engine_steps"]) * running
    found = {
        "gpu": "",  # not named
        "concurrency": str(max(1, round(running))),
        "isl": f"{cached} shared prefix + {round(length) - cached} suffix",
    }
    if told["method"] == "ngram":
        found["match_probability"] = f"{min(float(told['num_drafts']) / steps, 1):.4f}"
    if told["method"] == "suffix":
        found |= _of_any_length(told, steps)
    return found


def _of_any_length(told: Row, steps: float) -> Row:
    """Return what suffix decoding drafted and gained, as if both were independent.

    Drafts are geometric, with the mean of all steps of a sequence. As many tokens are accepted as
    were, each position in the share that the row says, where that does not rise.
    """
    drafts = float(told["num_drafts"]) / steps
    mean = drafts * float(told["num_draft_tokens"]) / float(told["num_drafts"])
    reached, last, rates = 1.0, 1.0, []
    for rate in map(float, told["accept_rate_per_pos"].split(";")):
        reached *= mean / (1 + mean)
        last = min(last, drafts * rate / reached)
        rates.append((reached, last))
    gained = float(told["num_accepted_tokens"]) / steps
    largest = _LARGEST_GRAPH.search(told["other_flags"])
    factor = gained / sum(share * rate for share, rate in rates)
    return {
        "mean_match_len": f"{mean:.4f}",
        "accept_rate_per_pos": ";".join(f"{min(factor * rate, 1):.4f}" for _, rate in rates),
        "acceptance_length": "",  # of drafts as they were
        "max_cudagraph_capture_size": largest[1] if largest else "",  # vLLM's own choice
    }


def _lengths(cell: str) -> str:
    """Return lengths in one of specsim's three forms; of prompts that grow nothing is known."""
    if uniform := _UNIFORM.fullmatch(cell):
        return uniform[1]
    if system := _SYSTEM.fullmatch(cell):
        return "" if system[3] else f"{system[1]} shared prefix + {system[2]} suffix"
    return cell


if __name__ == "__main__":
    given = [Path(each) for each in sys.argv[1:]]
    if len(given) != 2 or not given[0].is_file() or not given[1].is_dir():
        sys.exit("clean.py: takes a table and a folder that is there: clean.py TABLE.csv FOLDER")
    if given[1].samefile(given[0].parent):
        sys.exit(f"clean.py: {given[0]} would be overwritten; name another folder")
    print(cleaned(*given))
