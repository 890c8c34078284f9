"""Our n-gram drafts against the accepted lengths that SpecDecode-Bench recorded for its own."""

from conftest import data_folder, needs

from specsim.core.request import Request
from specsim.lookup.ngram import find_ngram
from specsim.tokens.draft_eval import load_texts

FOLDER = data_folder() / "tokens"
DRAFT_LEN = 20


def accepted_lens(request: Request) -> list[int]:
    """Accepted length of a draft at every output position, by n-grams of 3 to 7 tokens."""
    text = request.text
    tokens = text.token_ids.tolist()
    lens = []
    for known_len in range(text.prompt_len, len(tokens)):
        start = find_ngram(text.token_ids, known_len, 3, 7, from_end=False)
        accepted_len = 0
        if start >= 0:
            # Drafts end where the known text does.
            limit = min(DRAFT_LEN, known_len - start, len(tokens) - known_len)
            while accepted_len < limit and (
                tokens[start + accepted_len] == tokens[known_len + accepted_len]
            ):
                accepted_len += 1
        lens.append(accepted_len)
    return lens


@needs(FOLDER)
def test_recorded_acceptance_is_reproduced() -> None:
    same = total = 0
    for path in sorted(FOLDER.glob("llama31_8b_*.jsonl.gz")):
        for request in load_texts(path):
            ours, record = accepted_lens(request), list(request.recorded_lens["ngram"])
            total += len(record)
            for position, (own, recorded) in enumerate(zip(ours, record, strict=True)):
                left = request.output_len - position
                # The record looks beyond the end of the stored answer, where nobody can follow.
                assert own == recorded or own == left < recorded <= DRAFT_LEN
                same += own == recorded
    assert total > 0
    assert same >= 0.999 * total
