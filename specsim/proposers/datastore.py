"""A corpus of earlier answers as the drafter."""

from pathlib import Path
from typing import Literal, final

from pydantic import Field

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
