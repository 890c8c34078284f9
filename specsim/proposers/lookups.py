"""Drafts looked up in text: the request's own, earlier answers, or a corpus; the hybrid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from specsim.acceptance.base import MAX_DRAFT_LEN, Floats, Rates, split_rows
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.lookup import Lookup, load
from specsim.proposers import PROPOSERS, NestedProposer
from specsim.proposers.base import LookupProposer, Proposer


class _Ngrams(LookupProposer):
    """Drafts what followed the last n tokens where they stood before."""

    prompt_lookup_max: int = Field(default=5, ge=1, lt=2**31)
    """Longest n-gram to match, tokens."""
    prompt_lookup_min: int = Field(default=5, ge=1, lt=2**31)
    """Shortest n-gram to match, tokens."""
    match_probability: float = Field(default=1.0, ge=0, le=1)
    """P(there is a match to draft from)."""
    statistical_fields = frozenset({"match_probability"})
    has_confidence = False
    drafts_first_token = False

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Take one bound for both, as vLLM does (``config/speculative.py``)."""
        bounds = ("prompt_lookup_min", "prompt_lookup_max")
        given = [data[name] for name in bounds if name in data] if isinstance(data, dict) else []
        return {**dict.fromkeys(bounds, given[0]), **data} if len(given) == 1 else data

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )
        return self

    def make_lookup(self) -> Lookup:
        return load("ngram", "NgramGpuLookup" if self.looks_up_on_gpu else "NgramLookup")(
            shortest=self.prompt_lookup_min, longest=self.prompt_lookup_max
        )

    @property
    def always_finds(self) -> bool:
        return self.match_probability == 1.0

    def found_lens(self, uniforms: NDArray[np.float64], max_draft_len: int) -> NDArray[np.int64]:
        """Return a full draft or none."""
        return np.where(uniforms < self.match_probability, max_draft_len, 0)


@final
class Ngram(_Ngrams):
    """Drafts what followed the last n tokens where they stood before (Saxena 2023, prompt lookup).

    It is vLLM's on the host: up to 0.31, and later where its first model runner serves. On token
    ids (acceptance ``token_match``) it drafts from the longest n-gram within the bounds, the
    earliest one on ties. Without them it finds a match of full length with `match_probability`,
    independently at every output position, and the acceptance model says how much of it survives.
    """

    method: Literal["ngram"] = "ngram"
    on_gpu = "ngram_gpu"


@final
class NgramGpu(_Ngrams):
    """Prompt lookup by vLLM's second model runner, on GPUs, since 0.32.

    There ``ngram`` and ``ngram_gpu`` are both this; what ``ngram_gpu`` was before is not simulated.

    It drafts from the longest n-gram within the bounds, the last one on ties, and for every request
    `num_speculative_tokens`: where the text ends, or nothing is found, the last token again and
    again. These are verified like all others, and steps are scheduled asynchronously (with
    ``ngram`` since 0.33). Acceptance ``token_match`` compares them with the recorded answers;
    without token ids there is a match with `match_probability`, independently at every output
    position, nothing survives where there is none, and the acceptance model says how much does
    where there is one.

    References:
        vLLM 0.33.0 ``v1/worker/gpu/spec_decode/ngram/speculator.py``.
    """

    method: Literal["ngram_gpu"] = "ngram_gpu"
    supports_async = True
    looks_up_on_gpu = True

    def start(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> None:
        """Return None: it offers all that it is asked for."""

    def survival_lens(
        self,
        requests: Sequence[Request],
        tables: list[bytes],
        luck: Luck,
        max_draft_len: int,
        *,
        reads_tokens: bool,
    ) -> list[bytes]:
        if reads_tokens:
            count: Any = load("ngram", "accepted_lens")
            bounds = (self.prompt_lookup_min, self.prompt_lookup_max)
            return [count(request.text, *bounds, max_draft_len) for request in requests]
        if self.always_finds:
            return tables
        counts = [len(table) for table in tables]
        uniforms = luck.uniforms([request.index for request in requests], counts)
        found = self.found_lens(uniforms, max_draft_len)
        kept = np.minimum(np.frombuffer(b"".join(tables), dtype=np.uint8), found)
        return split_rows(kept.astype(np.uint8).tobytes(), counts)

    def known_rates(self, rates: Rates) -> Rates:
        """Let a first token be right only where there is a match, of which nobody knows before."""

        def where_found(
            requests: NDArray[np.int64], positions: NDArray[np.int64]
        ) -> tuple[Floats, Floats]:
            means, squares = (each.copy() for each in rates(requests, positions))
            means[:, :1] *= self.match_probability
            squares[:, :1] *= self.match_probability**2
            return means, squares

        return where_found


def _says_optional(schema: dict[str, Any]) -> None:
    """Let a JSON schema say of the longest draft that it may be left out, and is filled in."""
    schema["required"].remove("num_speculative_tokens")


@final
class Suffix(LookupProposer):
    """Drafts from suffix trees of this and earlier outputs (Oliaro et al. 2024, "SuffixDecoding").

    On token ids (acceptance ``token_match``) it is Arctic Inference's, as vLLM uses it. Without
    them the length of the pattern that the tree recognises is geometric with mean `mean_match_len`,
    independently at every output position, and a draft is at most `suffix_decoding_max_spec_factor`
    times as long (there, MAX_SPEC = factor * match length). The acceptance model says how much of
    it survives.
    """

    model_config = ConfigDict(json_schema_extra=_says_optional)
    method: Literal["suffix"] = "suffix"
    mean_match_len: float | None = Field(default=None, ge=0)
    """Mean length of the recognised pattern, tokens; by default long enough for any draft."""
    suffix_decoding_max_spec_factor: float = Field(default=1.0, gt=0)
    """Draft tokens per token of the pattern."""
    suffix_decoding_max_tree_depth: int = Field(default=24, ge=2, le=4096)
    """Longest pattern and draft together that the trees know, tokens."""
    suffix_decoding_min_token_prob: float = Field(default=0.1, ge=0, le=1)
    """Estimated probability below which a draft ends."""
    suffix_decoding_max_cached_requests: int = Field(default=10_000, ge=-1)
    """Answers that the global tree remembers, first in, first out; 0: none, -1: no limit."""
    use_tree: bool = False
    """Draft trees, not chains; vLLM verifies chains."""
    use_global_tree: bool = True
    """Draft from earlier answers, too."""
    use_local_tree: bool = True
    """Draft from the request's own prompt and answer, too."""
    statistical_fields = frozenset({"mean_match_len"})

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Let the depth of the trees bound the draft, as vLLM does (``config/speculative.py``)."""
        if not isinstance(data, dict) or "num_speculative_tokens" in data:
            return data
        depth = data.get("suffix_decoding_max_tree_depth", 24)
        if type(depth) is not int:  # it is refused in its own name
            return {"num_speculative_tokens": 1, **data}
        return {"num_speculative_tokens": max(1, min(depth, MAX_DRAFT_LEN)), **data}

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        is_global = self.use_global_tree and self.suffix_decoding_max_cached_requests != 0
        if not is_global and not self.use_local_tree:
            raise ValueError(
                "use_local_tree = False leaves nothing to draft from, since the global tree is "
                "off, too; switch on one of them (the global one with use_global_tree and with "
                "suffix_decoding_max_cached_requests other than 0)"
            )
        return self

    def make_lookup(self) -> Lookup:
        return load("suffix", "SuffixLookup")(
            max_depth=self.suffix_decoding_max_tree_depth,
            max_spec_factor=self.suffix_decoding_max_spec_factor,
            min_token_prob=self.suffix_decoding_min_token_prob,
            max_cached_requests=self.suffix_decoding_max_cached_requests,
            use_tree=self.use_tree,
            use_global_tree=self.use_global_tree,
            use_local_tree=self.use_local_tree,
        )

    @property
    def always_finds(self) -> bool:
        """Whether matches are long enough for any draft."""
        return self.mean_match_len is None

    def found_lens(self, uniforms: NDArray[np.float64], max_draft_len: int) -> NDArray[np.float64]:
        assert self.mean_match_len is not None
        longer = self.mean_match_len / (1.0 + self.mean_match_len)  # P(the match goes on)
        match_lens = np.floor(np.log1p(-uniforms) / np.log(longer)) if longer else 0.0 * uniforms
        return np.minimum(self.suffix_decoding_max_spec_factor * match_lens, max_draft_len)


@final
class Datastore(LookupProposer):
    """Drafts what followed the last tokens in a corpus (He et al. 2023, "REST", section 3).

    On token ids (acceptance ``token_match``) the longest match of at most `max_prefix_len` tokens
    is looked up in a suffix array. Of the first `max_continuations` places where it stands, what
    follows most often is drafted: a tree of the most frequent sequences, or the chain of the most
    frequent next tokens. No match and no draft crosses from one text of the corpus into the next.
    The corpus is fixed before the run, and nobody checks it against the requests: a trace that is
    both corpus and workload drafts each answer from itself, which no server could. Split it.

    Without token ids it always offers a full draft, and the acceptance model says how much of it
    survives.
    """

    method: Literal["datastore"] = "datastore"
    examples = ({"num_speculative_tokens": 5, "corpus": "answers.jsonl.gz"},)
    corpus: Path
    """Token trace whose recorded answers are the datastore."""
    corpus_includes_prompts: bool = False
    """Whether the prompts belong to it, too, each together with its answer."""
    max_prefix_len: int = Field(default=16, ge=1, le=1024)
    """Longest match, tokens; it goes down to one token."""
    max_continuations: int = Field(default=5000, ge=1)
    """Places of the match that are looked at: the first ones in the order of what follows."""
    branch_len: int = Field(default=10, ge=1, le=MAX_DRAFT_LEN)
    """Longest path of a draft, tokens; at most `num_speculative_tokens` in all."""
    use_tree: bool = False
    """Draft trees, not chains; vLLM verifies chains."""
    drafts_first_token = False

    def make_lookup(self) -> Lookup:
        """Return the suffix array of the corpus, read and sorted now."""
        return load("datastore", "DatastoreLookup")(
            corpus=_sorted_corpus(self),
            max_prefix_len=self.max_prefix_len,
            branch_len=self.branch_len,
            max_continuations=self.max_continuations,
            use_tree=self.use_tree,
        )


Factor = Annotated[float, Field(gt=0, le=1)]


@final
class Sssd(LookupProposer):
    """Drafts from the request's own text and from a datastore (Marzollo et al. 2024, "SSSD").

    On token ids (acceptance ``token_match``), section 3.1: what followed the last 1 to
    `input_prefix_len` tokens earlier in prompt and answer makes one candidate tree per length. What
    followed them in a corpus makes another one, of the longest match and then of shorter ones until
    there are `max_continuations`. The pseudo-probability of a candidate is the occurrences of its
    path over those of its root, dampened by source, length of the match and depth. Algorithm 1
    merges the trees into a draft, the most probable candidate first. A chain is what it merges if
    only the most probable candidate of each depth is kept.

    The paper counts every occurrence in the input; here a tree is made of the latest
    `max_continuations`, so that a draft takes no longer in a long context. The paper finds its
    factors by a grid search and does not print them; the defaults here were found one factor at a
    time on recorded answers, where they gain 4 % for trees and next to nothing for chains. Search
    your own with ``specsim draft-eval --grid``. Like `Datastore`, it trusts that no answer of the
    workload stands in the corpus.

    Without token ids it always offers a full draft, and the acceptance model says how much of it
    survives.
    """

    method: Literal["sssd"] = "sssd"
    examples = (
        {"num_speculative_tokens": 5, "corpus": "answers.jsonl.gz"},
        {"num_speculative_tokens": 5},
    )
    corpus: Path | None = None
    """Token trace whose recorded answers are the datastore; none by default."""
    corpus_includes_prompts: bool = False
    """Whether the prompts belong to it, too, each together with its answer."""
    use_input: bool = True
    """Draft from the request's own prompt and answer, too."""
    input_prefix_len: int = Field(default=4, ge=1, le=16)
    """Longest match in the input, tokens; the paper's P."""
    max_prefix_len: int = Field(default=16, ge=1, le=1024)
    """Longest match in the datastore, tokens."""
    max_continuations: int = Field(default=100, ge=1, le=10_000)
    """Continuations that a candidate tree is made of; the paper's M. The datastore's are taken at
    regular intervals."""
    branch_len: int = Field(default=10, ge=1, le=MAX_DRAFT_LEN)
    """Longest path of a draft, tokens; at most `num_speculative_tokens` in all."""
    use_tree: bool = False
    """Draft trees, not chains; vLLM verifies chains."""
    input_discount: Factor = 0.85
    """Factor on the probability of every candidate from the input."""
    input_match_discount: Factor = 0.7
    """Factor per token that the match is shorter than `input_prefix_len`."""
    input_depth_discount: Factor = 0.85
    """Factor per token that the candidate is deeper than the first one."""
    corpus_discount: Factor = 1.0
    """Factor on the probability of every candidate from the datastore."""
    corpus_match_discount: Factor = 0.92
    """Factor per token that the longest match is shorter than `max_prefix_len`."""
    corpus_depth_discount: Factor = 0.7
    """Factor per token that the candidate is deeper than the first one."""
    drafts_first_token = False

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.use_input and self.corpus is None:
            raise ValueError(
                "use_input = False leaves nothing to draft from; set use_input, or give a corpus"
            )
        return self

    def make_lookup(self) -> Lookup:
        """Return the suffix array of the corpus, if any, read and sorted now."""
        discounts: Any = load("sssd", "discounts")
        return load("sssd", "SssdLookup")(
            corpus=None if self.corpus is None else _sorted_corpus(self),
            input_discounts=discounts(
                self.input_discount,
                self.input_match_discount,
                self.input_depth_discount,
                longest=self.input_prefix_len if self.use_input else 0,
                branch_len=self.branch_len,
            ),
            corpus_discounts=discounts(
                self.corpus_discount,
                self.corpus_match_discount,
                self.corpus_depth_discount,
                longest=self.max_prefix_len,
                branch_len=self.branch_len,
            ),
            max_continuations=self.max_continuations,
            use_tree=self.use_tree,
        )


def _sorted_corpus(drafter: Datastore | Sssd) -> Any:
    return load("datastore", "read_corpus")(
        drafter.corpus,
        includes_prompts=drafter.corpus_includes_prompts,
        depth=drafter.max_prefix_len + drafter.branch_len,
    )


@final
class Hybrid(Proposer):
    """Two drafters side by side; the policy picks one per request and step.

    The lookup always drafts. Where the policy has no use for what it found, the fallback drafts,
    and costs what it costs: Oliaro et al. (2024), "SuffixDecoding", section "hybrid". Acceptance is
    ``token_match`` for the lookup and whatever the fallback needs for that, under ``per_drafter``.
    vLLM has nothing of the kind; KV room is reserved as for the fallback.
    """

    model_config = ConfigDict(json_schema_extra=_says_optional)
    method: Literal["hybrid"] = "hybrid"
    examples = (
        {
            "lookup": {"method": "suffix"},
            "fallback": {"method": "eagle3", "num_speculative_tokens": 3},
        },
    )
    lookup: NestedProposer
    """Such as ``{method: suffix}``."""
    fallback: NestedProposer
    """Such as ``{method: eagle3, num_speculative_tokens: 3}``."""
    supports_async = False
    has_fallback = True

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Let the longer of both drafts bound the draft."""
        if not isinstance(data, dict) or "num_speculative_tokens" in data:
            return data
        both = [PROPOSERS.parse(data[name]) for name in ("lookup", "fallback") if name in data]
        longest = max((drafter.num_speculative_tokens for drafter in both), default=1)
        return {"num_speculative_tokens": longest, **data}

    @model_validator(mode="after")
    def _check_drafters(self) -> Self:
        if not self.lookup.has_lookup() or self.lookup.has_fallback:
            raise ValueError(f"lookup: method '{self.lookup.method}' looks nothing up; use suffix")
        if self.lookup.looks_up_on_gpu:
            raise ValueError(
                f"lookup: method '{self.lookup.method}' never says whether it has found any; "
                "use ngram"
            )
        if self.fallback.has_fallback or len(self.fallback.cost_keys) > 1:
            raise ValueError(f"fallback: method '{self.fallback.method}' is not a single drafter")
        if self.fallback.method == self.lookup.method:
            raise ValueError(f"fallback: '{self.fallback.method}' drafts already, as the lookup")
        return self

    @property
    def parts(self) -> tuple[Proposer, Proposer]:
        return self.lookup, self.fallback

    @property
    def cost_keys(self) -> tuple[str, ...]:
        return (*self.lookup.cost_keys, *self.fallback.cost_keys)

    def lookahead_len(self, max_draft_len: int) -> int:
        return self.fallback.lookahead_len(self.fallback.num_speculative_tokens)

    def make_lookup(self) -> Lookup | None:
        return self.lookup.make_lookup()
