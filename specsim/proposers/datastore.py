"""Drafts from a corpus of earlier answers, alone or beside the request's own text."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import Field, model_validator

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.lookup import Lookup, load
from specsim.proposers.base import LookupProposer


@final
class Datastore(LookupProposer):
    """Drafts what followed the last tokens in a corpus (He et al. 2023, "REST", section 3).

    On token ids (acceptance ``token_match``) the longest match of at most `max_prefix_len` tokens
    is looked up in a suffix array; of the first `max_continuations` places where it stands, what
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
            corpus=load("corpus", "read_corpus")(
                self.corpus,
                includes_prompts=self.corpus_includes_prompts,
                depth=self.max_prefix_len + self.branch_len,
            ),
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
    `input_prefix_len` tokens earlier in prompt and answer makes one candidate tree per length; what
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
        corpus = None
        if self.corpus is not None:
            corpus = load("corpus", "read_corpus")(
                self.corpus,
                includes_prompts=self.corpus_includes_prompts,
                depth=self.max_prefix_len + self.branch_len,
            )
        return load("sssd", "SssdLookup")(
            corpus=corpus,
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
